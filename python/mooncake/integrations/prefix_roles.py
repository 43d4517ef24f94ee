# SPDX-License-Identifier: Apache-2.0
"""Prefixes in the store, in the two roles of an inference engine: its scheduler looks them up and keeps them, its workers read and write them.

As in handover.py methods are named as those of vLLM's connectors, and nothing here needs vLLM.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

from .. import kvplan
from .prefix_store import Pin, PrefixStore, RankStore

log = logging.getLogger("mooncake.connector")

KEEP_EVERY_S = 3.0  # well within the lease time of a master


def make_grid(regions: Sequence[kvplan.Region], stages: Sequence[int], head_cuts: int, block_tokens: int) -> kvplan.ShardGrid:
    """The grid of a model whose layers are cut into stages of so many layers each, as one rank (or, without regions, a scheduler) can know it. Of stages that
    are not here only the number counts, which is all that the names of their shards depend on."""
    ends = [sum(stages[: number + 1]) for number in range(len(stages))]
    parts: list[list[kvplan.Region]] = [[] for _ in stages]
    for region in regions:
        found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", region.layer)
        number = int(found[1]) if found else 0
        if number >= ends[-1]:
            raise ValueError(f"layer {region.layer} lies behind the {ends[-1]} layers of {len(stages)} stages")
        parts[next(at for at, end in enumerate(ends) if number < end)].append(region)
    nothing = kvplan.Region(
        layer="elsewhere", base=0, length=1, blocks=1, block_tokens=block_tokens, block_stride=block_tokens * head_cuts, token_stride=head_cuts, head_stride=1,
        cell_bytes=1, heads=head_cuts, total_heads=head_cuts)
    return kvplan.shard_grid([(part or [nothing], head_cuts) for part in parts], block_tokens)


@dataclasses.dataclass
class Blocks:
    """Some blocks of a request: hashes[i] is its numbers[i]-th."""

    request: str
    hashes: list[str]
    numbers: list[int]
    table: list[int]


@dataclasses.dataclass
class StoreMetadata:
    """From the scheduler to every worker, for one step."""

    loads: list[Blocks] = dataclasses.field(default_factory=list)
    saves: list[Blocks] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)  # requests whose blocks wait for their saves


@dataclasses.dataclass
class _Known:
    request: Any
    table: list[int] = dataclasses.field(default_factory=list)
    saved: int = 0  # blocks


class StoreSchedulerSide:
    """Not thread-safe. Requests have `block_hashes` (bytes or text, one for each whole block), as vLLM's have."""

    def __init__(self, prefix: PrefixStore) -> None:
        self._prefix, self._size = prefix, prefix.grid.block_tokens
        self._pins: dict[str, tuple[Pin, float]] = {}
        self._known: dict[str, _Known] = {}
        self._first: dict[str, int] = {}  # the number of the first block that was found
        self._next = StoreMetadata()
        self.hit_tokens = 0

    def _hashes(self, request: Any) -> list[str]:
        return [one.hex() if isinstance(one, bytes) else str(one) for one in request.block_hashes]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Asked again for the same request it gives the same answer, without asking the store again."""
        here = num_computed_tokens // self._size
        most = (request.num_prompt_tokens - 1) // self._size  # the last token is computed, for what follows it
        known = self._pins.get(request.request_id)
        if known is None:
            pin = self._prefix.lookup_and_pin(self._hashes(request)[here:most])
            known = self._pins[request.request_id] = pin, time.monotonic()
            self._first[request.request_id] = here
        tokens = max(0, (self._first[request.request_id] + known[0].blocks) * self._size - num_computed_tokens)
        if tokens == 0:
            self._release(request.request_id)
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        table = list(blocks.get_block_ids()[0])
        known = self._known.setdefault(request.request_id, _Known(request))
        known.table = table
        if num_external_tokens == 0 or request.request_id not in self._pins:
            return self._release(request.request_id)
        count = num_external_tokens // self._size
        first = self._first[request.request_id] + self._pins[request.request_id][0].blocks - count
        hashes = self._hashes(request)[first : first + count]
        self._next.loads.append(Blocks(request.request_id, hashes, list(range(first, first + count)), table))
        known.saved = first + count
        self.hit_tokens += num_external_tokens

    def build_connector_meta(self, scheduler_output: Any) -> StoreMetadata:
        made, self._next = self._next, StoreMetadata()
        now = time.monotonic()
        for request, (pin, since) in self._pins.items():
            if now - since > KEEP_EVERY_S:
                pin.keep()  # a block that is gone all the same is a load error, which workers report
                self._pins[request] = pin, now
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self._known:
                self._known[new.req_id].table = list(new.block_ids[0])
                self._save(made, new.req_id, new.num_computed_tokens, scheduler_output)
        cached = scheduler_output.scheduled_cached_reqs
        for at, request in enumerate(cached.req_ids):
            if request not in self._known:
                continue
            blocks = cached.new_block_ids[at]
            if request in getattr(cached, "resumed_req_ids", ()):
                self._known[request].table = []
            if blocks:
                self._known[request].table += list(blocks[0])
            self._save(made, request, cached.num_computed_tokens[at], scheduler_output)
        return made

    def _save(self, made: StoreMetadata, request: str, computed: int, scheduler_output: Any) -> None:
        """Blocks that this step makes whole; only those of the prompt, which others may ask for."""
        known = self._known[request]
        tokens = min(computed + scheduler_output.num_scheduled_tokens.get(request, 0), known.request.num_prompt_tokens)
        hashes = self._hashes(known.request)
        whole = min(tokens // self._size, len(hashes))
        if whole > known.saved:
            made.saves.append(Blocks(request, hashes[known.saved : whole], list(range(known.saved, whole)), list(known.table)))
            known.saved = whole

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        self._release(request.request_id)
        if self._known.pop(request.request_id, None) is None:
            return False, None
        self._next.finished.append(request.request_id)
        return True, None  # workers may still be reading the blocks, and say when not

    def update_connector_output(self, connector_output: Any) -> None:
        for request in connector_output.finished_recving or ():
            self._release(request)

    def _release(self, request: str) -> None:
        self._first.pop(request, None)
        pin, _ = self._pins.pop(request, (None, 0.0))
        if pin is not None:
            pin.release()


class StoreWorkerSide:
    """One rank. Loads and saves run in a thread of their own, one after the other."""

    def __init__(self, store: RankStore) -> None:
        self._store = store
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "mc-prefix")
        self._lock = threading.Lock()
        self._saving: dict[str, int] = {}  # below: guarded by the lock
        self._ended: set[str] = set()
        self._loaded: set[str] = set()
        self._errors: set[int] = set()
        self.errors: list[str] = []

    def start_load_kv(self, metadata: StoreMetadata) -> None:
        self._metadata = metadata
        for load in metadata.loads:
            self._thread.submit(self._load, load)
        with self._lock:
            self._ended |= set(metadata.finished)

    def wait_for_save(self, event: Any = None) -> None:
        """The blocks of this step are computed, or will be once the event has come to pass."""
        for save in self._metadata.saves:
            with self._lock:
                self._saving[save.request] = self._saving.get(save.request, 0) + 1
            self._thread.submit(self._save, save, event)
        self._metadata = StoreMetadata()

    def wait_for_all_saves(self) -> None:
        """Before blocks of requests that go on later (preemption) are given to others."""
        self._thread.submit(lambda: None).result()  # behind all that was submitted before

    def get_finished(self) -> tuple[set[str], set[str]]:
        with self._lock:
            sent = {request for request in self._ended if request not in self._saving}
            self._ended -= sent
            loaded, self._loaded = self._loaded, set()
        return sent, loaded

    def get_block_ids_with_load_errors(self) -> set[int]:
        with self._lock:
            errors, self._errors = self._errors, set()
        return errors

    def _load(self, load: Blocks) -> None:
        missing = list(load.numbers)
        try:
            missing = self._store.load(load.hashes, load.numbers, [load.table])
        except Exception as problem:  # the scheduler has to hear of it, whatever it is
            self._note(f"request {load.request}: {problem}")
        if missing:
            self._note(f"request {load.request}: {len(missing)} of {len(load.numbers)} blocks could not be read from the store")
        with self._lock:
            # What follows a hole has no meaning either.
            self._errors |= {load.table[number] for number in load.numbers if missing and number >= min(missing)}
            self._loaded.add(load.request)

    def _save(self, save: Blocks, event: Any) -> None:
        try:
            if event is not None:
                event.synchronize()
            lost = self._store.save(save.hashes, save.numbers, [save.table])
            if lost:
                self._note(f"request {save.request}: {lost} shards were not stored")
        except Exception as problem:
            self._note(f"request {save.request}: {problem}")
        finally:
            with self._lock:
                self._saving[save.request] -= 1
                if self._saving[save.request] == 0:
                    del self._saving[save.request]

    def _note(self, text: str) -> None:
        log.warning(text)
        self.errors = [*self.errors[-9:], text]

    def shutdown(self) -> None:
        self._thread.shutdown()
