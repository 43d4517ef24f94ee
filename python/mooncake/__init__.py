# SPDX-License-Identifier: Apache-2.0
"""Mooncake moves the KV cache of large language models between processes, hosts and devices.

Importing the package loads nothing native; that happens with `mooncake.engine` and `mooncake.store`.
"""

import os.path
import sys
from typing import Any, NamedTuple

# Other distributions may have modules of this package, elsewhere on the path. As pkgutil.extend_path(), which takes longer to import than all of this.
__path__ += [found for entry in sys.path if isinstance(entry, str) and os.path.isdir(found := os.path.join(entry, __name__))
             and found not in __path__]

try:
    from ._version import version as __version__
except ImportError:  # the source folder itself, not an installed package
    __version__ = "0+unbuilt"

__all__ = ["BufferPool", "Feature", "RegisteredBufferPool", "__version__", "features", "get_include", "get_library_dir"]

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


class Feature(NamedTuple):
    """Something that Mooncake can do. True where it can be done in this process, now."""

    usable: bool
    reason: str  # what there is, or why not

    def __bool__(self) -> bool:
        return self.usable


def features() -> dict[str, Feature]:
    """What this package can do in this process, by name, and why not: transports, kinds of memory, allocators of memory pools.

    Loads the native module and, if it is installed, libfabric; nothing of CUDA that is not loaded.
    """
    from . import engine
    from .fabric_allocator_utils import get_mooncake_so_path

    found = {name: Feature(usable, reason) for name, usable, reason in engine._list_features()}
    for name in ("hip", "mnnvl", "musa"):
        found[name] = Feature(False, "this package is built without it")
    found["intra_nvlink"] = found["cuda"]
    try:
        found["nvlink_allocator"] = Feature(True, get_mooncake_so_path("nvlink_allocator.so", "nvlink_allocator.so is not in the package"))
    except ImportError as error:
        found["nvlink_allocator"] = Feature(False, str(error))
    return found
