# SPDX-License-Identifier: Apache-2.0
"""A client of a pool: `store_worker.py MASTER`. The memory of the pool lies in another process."""

import ctypes
import gc
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import children
import geometry
from mooncake.store import MooncakeDistributedStore

HOST = "127.0.0.1"
BUFFER = 64 * geometry.MiB
KEPT = 256 * geometry.MiB  # of values that gets find; puts go on for ever, and the pool evicts


class Client:
    def __init__(self, master: str) -> None:
        self._store = MooncakeDistributedStore()
        if (code := self._store.setup(HOST, "P2PHANDSHAKE", 0, 0, "tcp", "", master)) != 0:
            raise SystemExit(f"setup: {code}")
        self._pages = mmap.mmap(-1, BUFFER)
        self._bytes = (ctypes.c_char * BUFFER).from_buffer(self._pages)
        self._address = ctypes.addressof(self._bytes)
        self._pages[:] = os.urandom(geometry.MiB) * (BUFFER // geometry.MiB)
        if self._store.register_buffer(self._address, BUFFER) != 0:
            raise SystemExit("cannot register memory")
        self._number = 0

    def verify(self) -> dict[str, Any]:
        size, batch = 96 * geometry.KiB, 32
        keys, places, sizes = [f"verify{i}" for i in range(batch)], [self._address + i * size for i in range(batch)], [size] * batch
        there = self._pages[:size * batch]
        self._need(self._store.batch_put_from(keys, places, sizes), 0)
        self._pages[:size * batch] = bytes(size * batch)
        self._need(self._store.batch_get_into(keys, places, sizes), size)
        if self._pages[:size * batch] != there:
            raise RuntimeError("what came back is not what was put")
        return {}

    def measure(self, op: str, size: int, batch: int, seconds: float) -> dict[str, Any]:
        step = {"put": self._puts, "get": self._gets, "hit": self._hits, "miss": self._misses}[op](size, batch)
        for _ in range(3):
            next(step)
        gc.disable()
        start = time.perf_counter_ns()
        durations = [next(step)]
        while time.perf_counter_ns() - start < seconds * 1e9:
            durations.append(next(step))
        elapsed = sum(durations)
        gc.enable()
        figures = children.summary(durations, size * batch, elapsed)
        return figures | {"keys": len(durations) * batch / (elapsed / 1e9)}

    def _puts(self, size: int, batch: int) -> Iterator[int]:
        places, sizes = [self._address + i * size for i in range(batch)], [size] * batch
        while True:
            self._number += batch
            keys = [f"put{i}" for i in range(self._number, self._number + batch)]
            if batch == 1:
                yield self._timed(lambda: self._store.put_from(keys[0], places[0], size), 0)
            else:
                yield self._timed(lambda: self._store.batch_put_from(keys, places, sizes), 0)

    def _gets(self, size: int, batch: int) -> Iterator[int]:
        places, sizes = [self._address + i * size for i in range(batch)], [size] * batch
        count = max(1, min(KEPT // (size * batch), 64))
        self._store.remove_all(True)  # else small ones that are leased stand in the way of large ones, which may go for each other then
        self._number += 1
        names = [[f"get{self._number}-{b}-{i}" for i in range(batch)] for b in range(count)]
        for keys in names:
            self._need(self._store.batch_put_from(keys, places, sizes), 0)
        while True:
            for keys in names:
                if batch == 1:
                    yield self._timed(lambda: self._store.get_into(keys[0], places[0], size), size)
                else:
                    yield self._timed(lambda: self._store.batch_get_into(keys, places, sizes), size)

    def _hits(self, size: int, batch: int) -> Iterator[int]:
        self._number += 1
        keys, places = [f"hit{self._number}-{i}" for i in range(batch)], [self._address] * batch
        self._need(self._store.batch_put_from(keys, places, [size] * batch), 0)
        while True:
            yield self._timed(lambda: self._store.batch_is_exist(keys), 1)

    def _misses(self, size: int, batch: int) -> Iterator[int]:
        keys = [f"miss{i}" for i in range(batch)]
        while True:
            if batch == 1:
                yield self._timed(lambda: self._store.is_exist(keys[0]), 0)
            else:
                yield self._timed(lambda: self._store.batch_is_exist(keys), 0)

    def _timed(self, call: Callable[[], Any], right: int) -> int:
        before = time.perf_counter_ns()
        results = call()
        after = time.perf_counter_ns()
        self._need(results, right)
        return after - before

    @staticmethod
    def _need(results: Any, right: int) -> None:
        wrong = [one for one in (results if isinstance(results, list) else [results]) if one != right]
        if wrong:
            raise RuntimeError(f"{len(wrong)} results like {wrong[0]}, not {right}")


def main() -> None:
    client = Client(sys.argv[1])
    answers: dict[str, Callable[..., dict[str, Any]]] = {"verify": client.verify, "measure": client.measure}
    children.serve({}, lambda question: answers[question.pop("do")](**question))
    os._exit(0)


if __name__ == "__main__":
    main()
