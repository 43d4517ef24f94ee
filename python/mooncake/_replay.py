# SPDX-License-Identifier: Apache-2.0
"""Plays requests against a store as an inference engine would, block by block, and checks every byte it gets back.

A request is a list of block ids, a prefix chain as in the public traces: whatever prefix is in the pool is read, the rest is computed (here: filled with a
pattern) and put.
"""

from __future__ import annotations

import json
import mmap
import random
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

BATCH_BLOCKS = 128


def pattern(block: int, size: int) -> bytes:
    """What a block of that id holds: the id over and over, so that any mix-up shows at every place."""
    word = (block * 0x9E3779B97F4A7C15 & (1 << 64) - 1).to_bytes(8, "little")
    return (word * (size // 8 + 1))[:size]


@dataclass
class Tally:
    requests: int = 0
    asked: int = 0  # blocks
    hit: int = 0
    put: int = 0
    refused: int = 0  # puts answered with an error
    lost: int = 0  # said to exist, but not readable
    wrong: int = 0  # bytes that are not those that were put
    get_ns: list[int] = field(default_factory=list)  # per batch
    put_ns: list[int] = field(default_factory=list)

    @property
    def hit_ratio(self) -> float:
        return self.hit / self.asked if self.asked else 0.0


def quantile_us(samples: list[int], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e3 if ordered else 0.0


class Player:
    """One client of the pool. `store` is set up already; the player registers one buffer with it."""

    def __init__(self, store, block_bytes: int, prefix: str = "block") -> None:
        self.tally = Tally()
        self._store, self._size, self._prefix = store, block_bytes, prefix
        self._memory = mmap.mmap(-1, BATCH_BLOCKS * block_bytes)
        self._view = memoryview(self._memory)
        self._address = _address_of(self._memory)
        if (code := store.register_buffer(self._address, len(self._memory))) != 0:
            raise RuntimeError(f"register_buffer: {code}")
        self._places = [self._address + i * block_bytes for i in range(BATCH_BLOCKS)]
        self._sizes = [block_bytes] * BATCH_BLOCKS

    def play(self, blocks: list[int]) -> None:
        tally, keys = self.tally, [f"{self._prefix}{block}" for block in blocks]
        tally.requests += 1
        tally.asked += len(blocks)
        there = next((i for i, one in enumerate(self._store.batch_is_exist(keys)) if one != 1), len(keys))
        hit = self._read(blocks[:there], keys[:there])
        tally.hit += hit
        tally.lost += there - hit
        self._write(blocks[hit:], keys[hit:])

    def close(self) -> None:
        self._store.unregister_buffer(self._address)

    def _read(self, blocks: list[int], keys: list[str]) -> int:
        """How many of them came, up to the first that did not."""
        for start in range(0, len(keys), BATCH_BLOCKS):
            part = keys[start:start + BATCH_BLOCKS]
            before = time.perf_counter_ns()
            results = self._store.batch_get_into(part, self._places[:len(part)], self._sizes[:len(part)])
            self.tally.get_ns.append(time.perf_counter_ns() - before)
            for i, result in enumerate(results):
                if result != self._size:
                    return start + i
                if self._block(i) != pattern(blocks[start + i], self._size):
                    self.tally.wrong += 1
        return len(keys)

    def _write(self, blocks: list[int], keys: list[str]) -> None:
        for start in range(0, len(keys), BATCH_BLOCKS):
            part = keys[start:start + BATCH_BLOCKS]
            for i, block in enumerate(blocks[start:start + BATCH_BLOCKS]):
                self._view[i * self._size:(i + 1) * self._size] = pattern(block, self._size)
            before = time.perf_counter_ns()
            results = self._store.batch_put_from(part, self._places[:len(part)], self._sizes[:len(part)])
            self.tally.put_ns.append(time.perf_counter_ns() - before)
            self.tally.refused += sum(result != 0 for result in results)
            self.tally.put += sum(result == 0 for result in results)

    def _block(self, i: int) -> memoryview:
        return self._view[i * self._size:(i + 1) * self._size]


def _address_of(memory: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


# ---- where requests come from


def read_trace(path: str, limit: int = 0) -> Iterator[list[int]]:
    """The requests of a trace file: JSON lines with `hash_ids`."""
    with open(path) as lines:
        for number, line in enumerate(lines):
            if limit and number >= limit:
                return
            yield json.loads(line)["hash_ids"]


def conversations(seed: int = 1, users: int = 64, system_blocks: int = 4) -> Iterator[list[int]]:
    """Made-up chats without end: a shared system prompt, then turns that each repeat all that was said before."""
    choose = random.Random(seed)
    fresh = iter(range(1 << 62))
    system = [next(fresh) for _ in range(system_blocks)]
    chats: list[list[int]] = [[] for _ in range(users)]
    while True:
        chat = chats[min(int(choose.expovariate(4 / users)), users - 1)]  # some talk more than others
        chat.extend(next(fresh) for _ in range(choose.randint(1, 6)))
        yield system + chat
        if choose.random() < 0.08:
            chat.clear()


def plain_lru(requests: Iterable[list[int]], capacity: int) -> float:
    """Block hit ratio of one ideal LRU of that many blocks; the end of a request is touched first, so that heads stay youngest."""
    order: OrderedDict[int, None] = OrderedDict()
    asked = hit = 0
    for blocks in requests:
        asked += len(blocks)
        hit += next((i for i, block in enumerate(blocks) if block not in order), len(blocks))
        for block in reversed(blocks):
            order[block] = None
            order.move_to_end(block)
            if len(order) > capacity:
                order.popitem(last=False)
    return hit / asked if asked else 0.0
