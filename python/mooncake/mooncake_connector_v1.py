# SPDX-License-Identifier: Apache-2.0
"""vLLM's connector, by the name that other set-ups know. Importing this imports vLLM."""

from .integrations.vllm_connector import MooncakeConnector, MooncakeConnectorMetadata

__all__ = ["MooncakeConnector", "MooncakeConnectorMetadata"]
