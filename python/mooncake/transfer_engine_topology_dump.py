# SPDX-License-Identifier: Apache-2.0
"""transfer_engine_topology_dump, by the name that other launchers know."""

from .cli import transfer_engine_topology_dump as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
