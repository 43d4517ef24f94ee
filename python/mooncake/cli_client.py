# SPDX-License-Identifier: Apache-2.0
"""mooncake_client, by the name that other launchers know."""

from .cli import mooncake_client as main

__all__ = ["main"]

if __name__ == "__main__":
    main()
