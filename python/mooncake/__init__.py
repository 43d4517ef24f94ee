# SPDX-License-Identifier: Apache-2.0
"""Mooncake moves the KV cache of large language models between processes, hosts and devices.

Importing the package loads nothing native; that happens with `mooncake.engine` and `mooncake.store`.
"""

import os.path
from pkgutil import extend_path
from typing import Any

__path__ = extend_path(__path__, __name__)

try:
    from ._version import version as __version__
except ImportError:  # the source folder itself, not an installed package
    __version__ = "0+unbuilt"

__all__ = ["BufferPool", "RegisteredBufferPool", "__version__", "features", "get_include", "get_library_dir"]

_HERE = os.path.dirname(os.path.realpath(__file__))


def __getattr__(name: str) -> Any:
    if name in ("BufferPool", "RegisteredBufferPool"):
        from .buffer_pool import BufferPool

        return BufferPool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get_include() -> str:
    """The folder to name with -I for the C and C++ headers."""
    return os.path.join(_HERE, "include")


def get_library_dir() -> str:
    """The folder to name with -L (and -rpath) for libtransfer_engine.so and libmooncake_store.so."""
    return os.path.join(_HERE, "lib")


def features() -> dict[str, bool]:
    """What this build can do, by name: {"cuda": False, ...}. Loads the native module."""
    from . import engine

    return {name.removeprefix("SUPPORT_").lower(): bool(getattr(engine, name)) for name in dir(engine) if name.startswith("SUPPORT_")}
