# SPDX-License-Identifier: Apache-2.0
"""Where the native allocators of memory pools are, and what they say of this machine."""

import ctypes
import os
from importlib import resources
from typing import Any


def get_mooncake_so_path(so_name: str, import_error_message: str) -> str:
    """The path of a library that the package carries. ImportError with the message where it is not."""
    try:
        with resources.as_file(resources.files("mooncake").joinpath(so_name)) as found:
            if found.is_file():
                return str(found)
    except (ImportError, FileNotFoundError, TypeError):
        pass  # the package is no folder, or is in several
    import mooncake

    beside = os.path.join(os.path.dirname(os.path.abspath(mooncake.__file__)), so_name)
    if os.path.isfile(beside):
        return beside
    raise ImportError(import_error_message)


def probe_allocator_backend(so_path: str, symbol: str = "mc_allocator_probe", restype: Any = ctypes.c_int, unsupported_value: Any = -2) -> Any:
    """What the library says of GPU 0; `unsupported_value` where it cannot be asked. Makes no context."""
    try:
        function = getattr(ctypes.CDLL(so_path), symbol)
        function.argtypes = [ctypes.c_int]
        function.restype = restype
        return function(0)
    except (OSError, AttributeError):
        return unsupported_value
