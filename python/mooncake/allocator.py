# SPDX-License-Identifier: Apache-2.0
"""Allocators for torch.cuda.MemPool whose memory other processes and hosts can be given.

    pool = torch.cuda.MemPool(NVLinkAllocator.get_allocator("cuda:0").allocator())
    with torch.cuda.use_mem_pool(pool):
        kv_cache = torch.empty(..., device="cuda:0")

Importing it needs torch and nothing of CUDA.
"""

import os
import threading
from enum import IntEnum
from typing import Any, ClassVar

import torch

from .fabric_allocator_utils import get_mooncake_so_path, probe_allocator_backend

__all__ = ["BarexAllocator", "MemoryBackend", "NVLinkAllocator"]


class MemoryBackend(IntEnum):
    """How memory of a GPU can be given to others."""

    USE_CUDAMALLOC = 0  # on this host
    USE_CUMEMCREATE = 1  # also to other hosts, over NVLink
    UNKNOWN = -1
    UNSUPPORTED = -2


def _device_key(device: Any) -> str:
    """One name for a device, however it is called: "cuda:1", 1, "1", torch.device("cuda", 1). "cuda" is the current one."""
    if isinstance(device, str):
        device = device.strip()
    if isinstance(device, str) and not device.isdecimal():
        kind, _, number = device.partition(":")
        index = int(number) if number else None
    elif isinstance(device, str) or hasattr(device, "__index__"):
        kind, index = "cuda", int(device)
    elif hasattr(device, "type") and hasattr(device, "index"):
        kind, index = device.type, device.index
    else:
        raise TypeError(f"a device is a str, an int or a torch.device, not {type(device).__name__}")
    if kind != "cuda" or (index is not None and index < 0):
        raise ValueError(f"{device!r} is no CUDA device")
    return f"cuda:{torch.cuda.current_device() if index is None else index}"


class _CachedAllocator:
    """One torch allocator for each device. They live as long as the process, as memory of theirs may."""

    _lock: ClassVar[Any]
    _by_device: ClassVar[dict[str, Any]]
    _functions: ClassVar[tuple[str, str]]

    def __init_subclass__(cls) -> None:
        cls._lock = threading.Lock()
        cls._by_device = {}

    @classmethod
    def _library(cls) -> str:
        raise NotImplementedError

    @classmethod
    def get_allocator(cls, device: Any) -> Any:
        """The torch.cuda.memory.CUDAPluggableAllocator of a device ("cuda:0", 0 or a torch.device). ImportError where the library is not."""
        key = _device_key(device)
        with cls._lock:
            if key not in cls._by_device:
                cls._by_device[key] = torch.cuda.memory.CUDAPluggableAllocator(cls._library(), *cls._functions)
            return cls._by_device[key]


class NVLinkAllocator(_CachedAllocator):
    """Memory that can be exported over NVLink between hosts where the machine allows that, and on this host otherwise."""

    _functions = ("mc_allocator_malloc", "mc_allocator_free")
    _backend: ClassVar[MemoryBackend | None] = None

    @classmethod
    def _library(cls) -> str:
        return get_mooncake_so_path(
            "nvlink_allocator.so", "NVLinkAllocator requires nvlink_allocator.so of mooncake-transfer-engine >= 0.3.3.post2"
        )

    @classmethod
    def detect_mem_backend(cls) -> MemoryBackend:
        """What GPU 0 gives, found out by an attempt, once. UNSUPPORTED where that is not possible."""
        with cls._lock:
            if cls._backend is None:
                cls._backend = cls._probe()
            return cls._backend

    @classmethod
    def _probe(cls) -> MemoryBackend:
        answers = {0: MemoryBackend.USE_CUDAMALLOC, 1: MemoryBackend.USE_CUMEMCREATE, 2: MemoryBackend.UNKNOWN}
        try:
            return answers.get(probe_allocator_backend(cls._library()), MemoryBackend.UNSUPPORTED)
        except ImportError:
            return MemoryBackend.UNSUPPORTED


class BarexAllocator(_CachedAllocator):
    """Memory of the vendor's barex library, which has to be installed."""

    _functions = ("u2mm_alloc_wrapper_with_stream", "u2mm_free_wrapper_with_stream")
    _places: ClassVar[tuple[str, ...]] = ("/usr/lib/libaccl_barex.so", "/usr/lib64/libaccl_barex.so")

    @classmethod
    def _library(cls) -> str:
        for path in cls._places:
            if os.path.isfile(path):
                return path
        return get_mooncake_so_path(
            "libaccl_barex.so", f"BarexAllocator requires libaccl_barex.so, at {' or '.join(cls._places)} or in the package"
        )
