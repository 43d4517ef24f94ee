# SPDX-License-Identifier: Apache-2.0
"""Registered memory on loan: what zero-copy calls of a store take, without registering anything per call."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import BufferLeaseView, MooncakeDistributedStore

_ALIGNMENT_MIN = 8


class BufferLease:
    """Memory from a BufferPool. Goes back with release(), at the end of a `with`, or when the object goes."""

    def __init__(self, pool: BufferPool, view: BufferLeaseView, size: int) -> None:
        self._pool = pool
        self._view: BufferLeaseView | None = view
        self._ptr, self._size = view.ptr, size

    @property
    def ptr(self) -> int:
        """The address. RuntimeError after release()."""
        self._held()
        return self._ptr

    @property
    def size(self) -> int:
        return self._size

    @property
    def buffer(self) -> memoryview:
        """The memory as a memoryview of bytes. BufferError after release()."""
        if self._view is None:
            raise BufferError("the lease was released")
        return memoryview(self._view)[:self._size]

    def release(self) -> None:
        """Gives the memory back; a second time does nothing. RuntimeError while views of it exist."""
        view = self._view
        if view is None:
            return
        if view.exports:
            raise RuntimeError("the lease has exported views; release them first")
        self._view = None
        view.release()
        self._pool._give_back(self._size)

    def _held(self) -> BufferLeaseView:
        if self._view is None:
            raise RuntimeError("the lease was released")
        return self._view

    def _drop(self) -> None:
        """As release(), but where views exist the memory goes back with the last of them."""
        view, self._view = self._view, None
        if view is None:
            return
        if view.exports:
            weakref.finalize(view, self._pool._give_back, self._size).atexit = False
        else:
            view.release()
            self._pool._give_back(self._size)

    def __len__(self) -> int:
        return self._size

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(self, exc_type: Any, *_: Any) -> None:
        if exc_type is None:
            self.release()
        else:  # which matters more than views that are still there
            self._drop()

    def __del__(self) -> None:
        if getattr(self, "_view", None) is not None:
            self._drop()


class BufferPool:
    """Lends registered memory: from the store's staging memory and, when that is full, memory registered for one lease.

    max_bytes bounds all leases together: 0 is twice the staging memory, and it is never less than that once. max_regions bounds how many
    leases may be out at once. Thread-safe. min_size_class, max_size_class, prewarm_size and prewarm_count are accepted and not needed.
    """

    def __init__(
        self,
        store: MooncakeDistributedStore,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        staging = getattr(store, "_buffer_bytes", int)()
        if staging == 0:
            raise RuntimeError("BufferPool needs a store that is set up with a local buffer")
        if alignment < _ALIGNMENT_MIN or alignment & (alignment - 1):
            raise RuntimeError(f"alignment must be a power of two and at least {_ALIGNMENT_MIN}, not {alignment}")
        if max_bytes < 0:
            raise TypeError(f"max_bytes must not be negative: {max_bytes}")
        if max_regions is not None and max_regions < 0:
            raise TypeError(f"max_regions must not be negative: {max_regions}")
        self._store, self._alignment, self._max_leases = store, alignment, max_regions
        self._max_bytes = max(max_bytes, staging) if max_bytes else 2 * staging
        self._block, self._timeout = block_on_exhaustion, default_timeout
        self._changed = threading.Condition()  # re-entrant: a lease may go while its thread is in here
        self._used = self._leases = 0
        self._closed = False

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """Memory of `size` bytes. RuntimeError if there is none, at once or after `timeout` seconds."""
        timeout = self._timeout if timeout is None else timeout
        if timeout is not None and timeout < 0:
            raise RuntimeError(f"timeout must not be negative: {timeout}")
        if size < 0:
            raise TypeError(f"size must not be negative: {size}")
        if size > self._max_bytes:
            raise RuntimeError(f"{size} bytes are more than the capacity of the pool ({self._max_bytes})")
        self._reserve(size, self._block if block is None else block, timeout)
        view, needed = None, max(size, 1)  # an empty lease has an address too
        try:
            view = self._store._stage(needed) or self._store._allocate(needed, self._alignment)
        finally:
            if view is None:
                self._give_back(size)
        if view is None:
            raise RuntimeError(f"no memory for {size} bytes, or the store is closed")
        return BufferLease(self, view, size)

    def buffer(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """acquire() by another name."""
        return self.acquire(size, block, timeout)

    def prewarm(self, size: int, count: int) -> None:
        """Does nothing: the memory is there already."""

    def close(self) -> None:
        """Ends lending. RuntimeError while leases are out."""
        with self._changed:
            if self._leases:
                raise RuntimeError(f"the pool has {self._leases} active leases")
            self._closed = True
            self._changed.notify_all()

    def _reserve(self, size: int, block: bool, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._closed and not self._has_room(size):
                out = f"{self._used} of {self._max_bytes} bytes and {self._leases} leases are out"
                if not block:
                    raise RuntimeError(f"the pool is exhausted: {out}")
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError(f"timed out, the pool is exhausted: {out}")
                self._changed.wait(left)
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._used += size
            self._leases += 1

    def _has_room(self, size: int) -> bool:
        return self._used + size <= self._max_bytes and (self._max_leases is None or self._leases < self._max_leases)

    def _give_back(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._leases -= 1
            self._changed.notify_all()

    def __enter__(self) -> BufferPool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
