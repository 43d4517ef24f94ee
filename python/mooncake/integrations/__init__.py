# SPDX-License-Identifier: Apache-2.0
"""How inference engines use the transfer engine and the store. docs/guide/connectors.md."""
