# SPDX-License-Identifier: Apache-2.0
"""Host memory that the ranks of one host share: one allocates, all map.

The memory has no name that could be left behind: it is an anonymous file of the owner (memfd), which the others open through /proc while the
owner lives. When the last process that maps it ends, however it ends, the memory is free.

Each rank's blob, 160 bytes, little endian: "MCSS", u16 version, u16 back end, u32 rank, u32 bytes of handle, u64 fingerprint of the
declaration, u64 bytes allocated; then 128 bytes for the handle: the owner's u32 process, u32 descriptor and 32 characters that tell this memory
from any other, nothing for the other ranks.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap as memory_map
import operator
import os
import struct
import weakref
from typing import Any, Sequence

_MAGIC, _VERSION, _MEMFD = b"MCSS", 1, 1
_HEADER = struct.Struct("<4sHHIIQQ")
_HANDLE = struct.Struct("<II32s")
_HANDLE_SPACE = 128
BLOB_BYTES = _HEADER.size + _HANDLE_SPACE
SIZE_MAX = 64 << 40


class SharedSegment:
    """Memory that several processes of one host share. The mapping lasts as long as this object does. Addresses differ between processes."""

    def __init__(self) -> None:
        raise TypeError("SharedSegment.create() makes one")

    @staticmethod
    def create(name: str, size: int, world_size: int, rank_id: int, owner_rank: int = 0, device_id: int = 0, mmap: bool = True,
               host_register: bool = False) -> tuple[SharedSegment, bytes]:
        """The first step, the same in all ranks but for rank_id; the owner allocates. Returns the segment and a blob that every rank needs
        for complete(). RuntimeError if it cannot be."""
        return _create(name, *(_natural(number) for number in (size, world_size, rank_id, owner_rank)), operator.index(device_id),
                       bool(mmap), bool(host_register))

    @staticmethod
    def supported(mmap: bool = True, host_register: bool = False) -> bool:
        """Whether create() with these can work here."""
        return bool(mmap) and not host_register and hasattr(os, "memfd_create")

    def complete(self, blobs: Sequence[bytes]) -> None:
        """The second step: takes the blobs of all ranks, in the order of ranks, while the owner's segment exists. RuntimeError says which
        blob does not fit and why; then it may be tried again."""
        _complete(self, blobs)

    def ready(self) -> bool:
        """Whether complete() succeeded."""
        return self._ready

    def base_addr(self) -> int:
        """Where the memory begins in this process; 0 while it is not mapped."""
        return self._address

    def device_addr(self) -> int:
        """Where a device sees it: 0, no device does."""
        return 0

    def size(self) -> int:
        """The size asked for."""
        return self._size


def _natural(value: Any) -> int:
    number = operator.index(value)
    if number < 0:
        raise TypeError("sizes and ranks are not negative")
    return number


def _create(name: str, size: int, world_size: int, rank_id: int, owner_rank: int, device_id: int, mmap: bool,
            host_register: bool) -> tuple[SharedSegment, bytes]:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    if not mmap:
        raise RuntimeError("shared segment: mmap=False needs memory of an Ascend device, which this build does not have")
    if host_register:
        raise RuntimeError("shared segment: host_register=True needs an Ascend device, which this build does not have")
    if not SharedSegment.supported():
        raise RuntimeError("shared segment: this system has no anonymous files (memfd)")
    if not 0 < size <= SIZE_MAX:
        raise RuntimeError(f"shared segment: size {size} is not in 1..{SIZE_MAX}")
    if rank_id >= world_size or owner_rank >= world_size:
        raise RuntimeError(f"shared segment: rank {rank_id} and owner {owner_rank} must be below the world size {world_size}")
    if world_size >= 1 << 32:
        raise RuntimeError(f"shared segment: a world of {world_size} ranks is too large")
    segment = SharedSegment.__new__(SharedSegment)
    page = memory_map.PAGESIZE
    segment._size, segment._allocated = size, (size + page - 1) // page * page
    segment._world_size, segment._rank, segment._owner = world_size, rank_id, owner_rank
    segment._fingerprint = _fingerprint(name, size, world_size, owner_rank)
    segment._ready, segment._address, segment._memory = False, 0, None
    handle = b""
    if rank_id == owner_rank:
        handle = _allocate(segment)
    header = _HEADER.pack(_MAGIC, _VERSION, _MEMFD, rank_id, len(handle), segment._fingerprint, segment._allocated)
    return segment, header + handle.ljust(_HANDLE_SPACE, b"\0")


def _fingerprint(*declaration: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(declaration).encode(), digest_size=8).digest(), "little")


def _allocate(segment: SharedSegment) -> bytes:
    """The owner's part; pages come with the first touch. Returns the handle."""
    if segment._allocated > os.sysconf("SC_PHYS_PAGES") * memory_map.PAGESIZE:
        raise RuntimeError(f"shared segment: {segment._allocated} bytes are more than this machine has")
    token = os.urandom(16).hex()
    try:
        descriptor = os.memfd_create(token, os.MFD_CLOEXEC)
        weakref.finalize(segment, os.close, descriptor)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, segment._allocated)
        _map(segment, descriptor)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"shared segment: cannot allocate {segment._allocated} bytes: {error}") from error
    return _HANDLE.pack(os.getpid(), descriptor, token.encode())


def _map(segment: SharedSegment, descriptor: int) -> None:
    memory = memory_map.mmap(descriptor, segment._allocated)
    if hasattr(memory_map, "MADV_HUGEPAGE"):
        try:
            memory.madvise(memory_map.MADV_HUGEPAGE)
        except OSError:  # advice only
            pass
    segment._memory = (ctypes.c_ubyte * segment._allocated).from_buffer(memory)
    segment._address = ctypes.addressof(segment._memory)


def _complete(segment: SharedSegment, blobs: Sequence[bytes]) -> None:
    if not isinstance(blobs, (list, tuple)) or not all(isinstance(blob, (bytes, bytearray, memoryview)) for blob in blobs):
        raise TypeError("a list of bytes is expected, one blob for each rank")
    if segment._ready:
        raise RuntimeError("shared segment: complete() has succeeded before")
    if len(blobs) != segment._world_size:
        raise RuntimeError(f"shared segment: {len(blobs)} blobs for {segment._world_size} ranks")
    handles = [_check(segment, rank, bytes(blob)) for rank, blob in enumerate(blobs)]
    if segment._rank != segment._owner:
        _open(segment, handles[segment._owner])
    segment._ready = True


def _check(segment: SharedSegment, rank: int, blob: bytes) -> bytes:
    """The handle in a blob. RuntimeError if the blob is not that of `rank`, made for this segment."""

    def refuse(why: str) -> RuntimeError:
        return RuntimeError(f"shared segment: the blob of rank {rank} {why}")

    if len(blob) != BLOB_BYTES:
        raise refuse(f"has {len(blob)} bytes, not {BLOB_BYTES}")
    magic, version, backend, its_rank, handle_bytes, fingerprint, allocated = _HEADER.unpack_from(blob)
    if magic != _MAGIC:
        raise refuse("is none: the magic number is wrong")
    if version != _VERSION:
        raise refuse(f"has version {version}, not {_VERSION}: the ranks run different builds")
    if backend != _MEMFD:
        raise refuse(f"comes from back end {backend}, not {_MEMFD}")
    if its_rank != rank:
        raise refuse(f"is that of rank {its_rank}")
    if fingerprint != segment._fingerprint:
        raise refuse("has another fingerprint: name, size, world size or owner differ from those given here")
    if allocated != segment._allocated:
        raise refuse(f"tells of {allocated} bytes, not {segment._allocated}")
    if handle_bytes != (_HANDLE.size if rank == segment._owner else 0):
        raise refuse(f"has a handle of {handle_bytes} bytes")
    return blob[_HEADER.size:_HEADER.size + handle_bytes]


def _open(segment: SharedSegment, handle: bytes) -> None:
    process, number, token = _HANDLE.unpack(handle)
    try:
        descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RuntimeError(f"shared segment: cannot open the memory of rank {segment._owner}, process {process}: {error.strerror}; it must live, on "
                           "this host, under the same user and in the same pid namespace") from error
    try:
        # The number may mean another file by now, or another process.
        if os.readlink(f"/proc/self/fd/{descriptor}") != f"/memfd:{token.decode('ascii', 'replace')} (deleted)":
            raise RuntimeError(f"shared segment: the memory of rank {segment._owner}, process {process}, is gone")
        if os.fstat(descriptor).st_size != segment._allocated:
            raise RuntimeError(f"shared segment: the memory of rank {segment._owner} has another size")
        _map(segment, descriptor)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"shared segment: cannot map the memory of rank {segment._owner}: {error}") from error
    finally:
        os.close(descriptor)
