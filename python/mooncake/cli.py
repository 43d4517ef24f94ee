# SPDX-License-Identifier: Apache-2.0
"""The console scripts that are native programs: each becomes the program of the same name in mooncake/bin."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def program(name: str) -> str:
    """The path of a native program of this package."""
    path = Path(__file__).resolve().parent / "bin" / name
    if not os.access(path, os.X_OK):
        sys.exit(f"{name}: {path} is missing from this installation")
    return str(path)


def _become(name: str) -> NoReturn:
    os.execv(program(name), [name, *sys.argv[1:]])


def mooncake() -> NoReturn:
    _become("mooncake")


def mooncake_master() -> NoReturn:
    _become("mooncake_master")


def mooncake_standalone() -> NoReturn:
    _become("mooncake_standalone")


def mooncake_client() -> NoReturn:
    _become("mooncake_client")


def transfer_engine_bench() -> NoReturn:
    _become("transfer_engine_bench")


def transfer_engine_topology_dump() -> NoReturn:
    _become("transfer_engine_topology_dump")


def main() -> NoReturn:
    """mooncake_master(), by the name that other launchers know."""
    mooncake_master()


if __name__ == "__main__":
    main()
