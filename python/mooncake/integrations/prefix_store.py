# SPDX-License-Identifier: Apache-2.0
"""Blocks of prompts in the store, where instances of any parallelism find them: looked up and kept by a scheduler, read and written by its ranks.

A block is known by a hash that stands for all tokens up to its end, and by everything else that decides about its bytes (`namespace()`); it is stored as the shards
of a grid that all instances share (docs/kvplan.md). It counts as present only if all of its shards are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Sequence
from typing import Any

from .. import kvplan

LEASE_EXPIRED, NOT_FOUND = -707, -704


def block_hashes(tokens: Sequence[int], block_tokens: int) -> list[str]:
    """One for each whole block; each stands for all tokens before it as well."""
    hashes, before = [], b""
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = struct.pack(f"<{block_tokens}q", *tokens[at : at + block_tokens])
        before = hashlib.blake2b(before + block, digest_size=16).digest()
        hashes.append(before.hex())
    return hashes


def namespace(model: str, regions: Sequence[kvplan.Region], **more: object) -> str:
    """What keys begin with: two instances that would read each other's bytes wrongly do not find them.

    regions: of all layers, of any rank: names, parts, heads and sizes count. more: whatever else decides about the bytes (revision, dtype, adapter, salt).
    """
    shape = sorted({(region.layer, region.part, region.total_heads, region.cell_bytes, region.rows) for region in regions})
    identity = repr((model, shape, sorted(more.items())))
    return f"{model}@{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


@dataclasses.dataclass
class Pin:
    """Blocks that stay readable. keep() is to be called within each lease time of the master (10 s unless it was told otherwise) for as long as they are needed."""

    blocks: int  # leading ones of those asked for
    _store: Any
    _keys: list[str]

    def keep(self) -> bool:
        """False: not all of them are there any more."""
        return not self._keys or all(code == 0 for code in self._store.batch_get_session_start(self._keys))

    def release(self) -> None:
        if self._keys:
            self._store.batch_get_session_end(self._keys)
        self._keys = []


class PrefixStore:
    """For a scheduler. `store` is one of its own: pins of others would end with ours."""

    def __init__(self, store: Any, grid: kvplan.ShardGrid, name: str) -> None:
        self._store, self.grid, self._name = store, grid, name

    def lookup_and_pin(self, hashes: Sequence[str]) -> Pin:
        """The longest run of blocks from the first on that are there, all in one question; they cannot be evicted before the lease ends, so that what was seen can
        be read. A store that does not answer has nothing."""
        shards = [[shard.segment for shard in self.grid.shards(f"{self._name}/{one}")] for one in hashes]
        keys = [key for block in shards for key in block]
        codes = self._store.batch_get_session_start(keys) if keys else []
        found = {key for key, code in zip(keys, codes) if code == 0}
        blocks = 0
        while blocks < len(shards) and all(key in found for key in shards[blocks]):
            blocks += 1
        kept = [key for block in shards[:blocks] for key in block]
        beyond = [key for block in shards[blocks:] for key in block if key in found]
        if beyond:
            self._store.batch_get_session_end(beyond)
        return Pin(blocks, self._store, kept)


class RankStore:
    """For one rank. Used by one thread at a time.

    store: one that knows the rank's memory: set up with the engine that has registered it, or told by register_buffer(). Not the scheduler's.
    ranks: all ranks that hold the same layers, of which this is `number`; of the others only the layout counts.
    """

    def __init__(self, store: Any, grid: kvplan.ShardGrid, name: str, ranks: Sequence[kvplan.Rank], number: int) -> None:
        self._store, self._grid, self._name = store, grid, name
        self._ranks, self._number = list(ranks), number
        self._layers = {(region.layer, region.part) for region in ranks[number].regions}

    def _shards(self, one: str) -> list[kvplan.Rank]:
        """Those of our layers: other stages of a pipeline see to theirs."""
        shards = self._grid.shards(f"{self._name}/{one}")
        return [shard for shard in shards if {(region.layer, region.part) for region in shard.regions} <= self._layers]

    def load(self, hashes: Sequence[str], numbers: Sequence[int], tables: Sequence[Sequence[int]]) -> list[int]:
        """Reads our share of blocks: hashes[i] is the numbers[i]-th block (of the grid) of the request, whose blocks here are `tables`. Returns the numbers of those
        that could not be read: their memory has no meaning."""
        wanted: dict[str, tuple[list[int], list[int], list[int]]] = {}
        block_of: dict[str, int] = {}
        size = self._grid.block_tokens
        for one, number in zip(hashes, numbers):
            shards = self._shards(one)
            plan = kvplan.make_plan(
                shards, [self._ranks[self._number]], tokens=size, first_token=number * size, source_blocks=[self._grid.table(number)] * len(shards),
                target_blocks=[[list(table) for table in tables]])
            for at, pair in enumerate(plan.pairs):
                offsets, addresses, lengths = plan.pieces(at)
                wanted[shards[pair.source].segment] = (addresses, lengths, offsets)
                block_of[shards[pair.source].segment] = number
        keys = list(wanted)
        if not keys:
            return []
        codes = self._store.batch_get_session_start(keys)
        try:
            there = [key for key, code in zip(keys, codes) if code == 0]
            moved = self._store.batch_get_into_multi_buffer_ranges(
                there, [wanted[key][0] for key in there], [wanted[key][1] for key in there], [wanted[key][2] for key in there]) if there else []
        finally:
            self._store.batch_get_session_end(keys)
        good = {key for key, count in zip(there, moved) if count == sum(wanted[key][1])}
        return sorted({block_of[key] for key in keys if key not in good})

    def save(self, hashes: Sequence[str], numbers: Sequence[int], tables: Sequence[Sequence[int]]) -> int:
        """Writes those shards that are ours to write. The blocks must not change before it returns. Returns how many shards were not stored: it is a cache."""
        keys, addresses, lengths = [], [], []
        size = self._grid.block_tokens
        for one, number in zip(hashes, numbers):
            shards = self._shards(one)
            plan = kvplan.make_plan_of_writes(
                self._ranks, shards, tokens=size, first_token=number * size, seed=int(one[:8], 16),
                source_blocks=[[list(table) for table in tables]] * len(self._ranks), target_blocks=[self._grid.table(number)] * len(shards))
            for at, pair in enumerate(plan.pairs):
                if pair.source != self._number:
                    continue
                pieces = sorted(zip(*plan.pieces(at)), key=lambda piece: piece[1])  # the value is its pieces one after the other
                keys.append(shards[pair.target].segment)
                addresses.append([address for address, _, _ in pieces])
                lengths.append([length for _, _, length in pieces])
        if not keys:
            return 0
        missing = [at for at, there in enumerate(self._store.batch_is_exist(keys)) if there != 1]
        if not missing:
            return 0
        codes = self._store.batch_put_from_multi_buffers(
            [keys[at] for at in missing], [addresses[at] for at in missing], [lengths[at] for at in missing])
        return sum(code != 0 for code in codes)


def side_of(rank: kvplan.Rank, tp_size: int, total_heads: int) -> list[kvplan.Rank]:
    """The ranks of a tensor parallelism as one of them can know them: same layers and blocks, other heads; addresses are its own, and mean nothing for the others."""
    ranks = []
    for number in range(tp_size):
        first, count = kvplan.heads_of_rank(total_heads, tp_size, number)
        values = kvplan.describe(rank)
        for region in values["regions"]:
            if region["total_heads"] != 1:  # a latent is everybody's
                region.update(first_head=first, heads=count)
        ranks.append(kvplan.rank_from(values))
    return ranks
