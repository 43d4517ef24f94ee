# SPDX-License-Identifier: Apache-2.0
"""A tiny transformer served by prefill and decode processes of different tensor parallelism, without a GPU: `python -m mooncake.demo --serve`.

Everything around the model is real: the connector's two roles (mooncake.integrations), the engine, the store, and the conductor in front. Needs NumPy.
"""
