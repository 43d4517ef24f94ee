# SPDX-License-Identifier: Apache-2.0
"""An inference engine in small: requests are taken up, computed in chunks, and generate; it calls the connector's roles where vLLM does."""

from __future__ import annotations

import enum
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..integrations.handover import SchedulerSide, Settings, WorkerSide
from ..integrations.prefix_store import Pin, PrefixStore, RankStore, block_hashes
from .model import SHAPE, Cache, Model


class Status(enum.Enum):
    WAITING = 0
    LOADING = 1
    RUNNING = 2
    FINISHED_LENGTH_CAPPED = 3
    FINISHED_ABORTED = 4
    FINISHED_ERROR = 5


Told = Callable[[str, Any], None]  # "token", number; "end", kv_transfer_params or None; "error", text


@dataclass(eq=False)
class Request:
    """Named as in vLLM, where the connector looks."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    told: Told
    kv_transfer_params: dict[str, Any] | None = None
    status: Status = Status.WAITING
    blocks: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is in the blocks
    made: list[int] = field(default_factory=list)
    new: bool = True
    cached: int = 0
    saved: int = 0  # blocks of the store's grid

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (self.blocks,)

    def next_tokens(self, most: int) -> list[int]:
        return (self.prompt + self.made)[self.computed :][:most]


@dataclass
class _New:
    req_id: str
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class _Cached:
    req_ids: list[str] = field(default_factory=list)
    new_block_ids: list[None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class _Output:
    """What a scheduler decided for one step."""

    scheduled_new_reqs: list[_New] = field(default_factory=list)
    scheduled_cached_reqs: _Cached = field(default_factory=_Cached)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)


@dataclass
class _Workers:
    """What they reported."""

    finished_recving: set[str]


class Engine:
    """One instance. `prefix`: where its scheduler looks for stored prefixes, and what its ranks read and write them with."""

    def __init__(
        self, settings: Settings, *, block_tokens: int = 16, blocks: int = 256, chunk_tokens: int = 32, layer_seconds: float = 0.0, model: Model | None = None
    ) -> None:
        self.model = model or Model()
        self.caches = [
            Cache(SHAPE, self.model.names, blocks, block_tokens, tp_size=settings.tp_size, tp_rank=number) for number in range(settings.tp_size)
        ]
        self.workers: list[WorkerSide] = []
        for number, cache in enumerate(self.caches):
            worker = WorkerSide(settings, tp_rank=number)
            worker.register_kv_caches(cache.layers, cache.regions())
            settings = worker.settings  # the first one knows the port
            self.workers.append(worker)
        self.settings = settings
        self.scheduler = SchedulerSide(settings)
        self.prefix: PrefixStore | None = None
        self.rank_stores: list[RankStore] = []
        self._block_tokens, self._chunk, self._layer_seconds = block_tokens, chunk_tokens, layer_seconds
        self._free = list(range(blocks))
        self._inbox: queue.SimpleQueue[Request | str | None] = queue.SimpleQueue()
        self._waiting: list[Request] = []
        self._loading: dict[str, Request] = {}
        self._running: list[Request] = []
        self._held: dict[str, list[int]] = {}  # blocks of finished requests that are still read
        self._reports: dict[tuple[str, str], int] = {}
        self._ended = False
        self.prefilled_tokens = self.stored_tokens = 0
        self._thread = threading.Thread(target=self._run, name="mc-demo-engine", daemon=True)

    def use_store(self, prefix: PrefixStore, rank_stores: Sequence[RankStore]) -> None:
        self.prefix, self.rank_stores = prefix, list(rank_stores)

    def start(self) -> None:
        self._thread.start()

    def add(self, request: Request) -> None:
        self._inbox.put(request)

    def abort(self, request_id: str) -> None:
        self._inbox.put(request_id)

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()
        for worker in self.workers:
            worker.shutdown()

    def state(self) -> dict[str, Any]:
        return {
            "running": len(self._running), "loading": len(self._loading), "waiting": len(self._waiting), "held": len(self._held),
            "free_blocks": len(self._free), "prefilled_tokens": self.prefilled_tokens, "stored_tokens": self.stored_tokens,
            "loaded_bytes": sum(worker.bytes_loaded for worker in self.workers), "load_steps": sum(worker.steps for worker in self.workers),
            "errors": [text for worker in self.workers for text in worker.errors],
        }

    # ---- the engine's thread

    def _run(self) -> None:
        while not self._ended:
            busy = bool(self._running)
            waits_for_peers = bool(self._loading or self._held)
            try:
                self._hear(self._inbox.get(block=not busy, timeout=0.002 if waits_for_peers else None))
                while True:
                    self._hear(self._inbox.get_nowait())
            except queue.Empty:
                pass
            self._step()

    def _hear(self, message: Request | str | None) -> None:
        if message is None:
            self._ended = True
        elif isinstance(message, Request):
            self._waiting.append(message)
        else:
            for request in [*self._waiting, *self._loading.values(), *self._running]:
                if request.request_id == message:
                    self._finish(request, Status.FINISHED_ABORTED, "aborted")

    def _step(self) -> None:
        for request in list(self._waiting):
            self._take_up(request)
        output = _Output()
        work: list[tuple[Request, list[int]]] = []
        for request in self._running:
            tokens = request.next_tokens(self._chunk)
            work.append((request, tokens))
            output.num_scheduled_tokens[request.request_id] = len(tokens)
            if request.new:
                output.scheduled_new_reqs.append(_New(request.request_id, request.get_block_ids(), request.computed))
            else:
                cached = output.scheduled_cached_reqs
                cached.req_ids.append(request.request_id)
                cached.new_block_ids.append(None)
                cached.num_computed_tokens.append(request.computed)
            request.new = False
        metadata = self.scheduler.build_connector_meta(output)
        for worker in self.workers:
            worker.start_load_kv(metadata)
        self._compute(work)
        for worker in self.workers:
            worker.wait_for_save()
        self._hear_workers()

    def _take_up(self, request: Request) -> None:
        needed = -(-(request.num_prompt_tokens + request.max_tokens) // self._block_tokens)
        if needed > len(self._free):
            return
        self._waiting.remove(request)
        request.blocks, self._free = self._free[:needed], self._free[needed:]
        external, _ = self.scheduler.get_num_new_matched_tokens(request, 0)
        if external == 0 and self.prefix is not None:
            self._load_prefix(request)
        self.scheduler.update_state_after_alloc(request, request, external)
        if external > 0:
            request.status = Status.LOADING
            self._loading[request.request_id] = request
        else:
            request.status = Status.RUNNING
            self._running.append(request)

    def _load_prefix(self, request: Request) -> None:
        """What was computed before, here or elsewhere, is read; the last token is always computed, for what follows it."""
        assert self.prefix is not None
        size = self.prefix.grid.block_tokens
        hashes = block_hashes(request.prompt, size)
        pin: Pin = self.prefix.lookup_and_pin(hashes[: (request.num_prompt_tokens - 1) // size])
        missing = {number for store in self.rank_stores for number in store.load(hashes[: pin.blocks], range(pin.blocks), [request.blocks])}
        pin.release()
        request.saved = request.cached = min(missing, default=pin.blocks)
        request.cached *= size
        request.computed = request.cached
        self.stored_tokens += request.cached

    def _save_prefix(self, request: Request) -> None:
        if self.prefix is None:
            return
        size = self.prefix.grid.block_tokens
        hashes = block_hashes(request.prompt, size)
        for store in self.rank_stores:
            store.save(hashes[request.saved :], range(request.saved, len(hashes)), [request.blocks])
        request.saved = len(hashes)

    def _compute(self, work: list[tuple[Request, list[int]]]) -> None:
        passes = [self.model.forward(tokens, request.computed, self.caches, request.blocks) for request, tokens in work]
        for name in self.model.names if work else ():
            for one in passes:
                next(one)
            if self._layer_seconds:
                time.sleep(self._layer_seconds)  # a larger model would compute meanwhile
            for worker in self.workers:
                worker.save_kv_layer(name)
        for (request, tokens), one in zip(work, passes):
            logits = next(one)
            before, request.computed = request.computed, request.computed + len(tokens)
            self.prefilled_tokens += max(0, min(request.computed, request.num_prompt_tokens) - before)
            if request.computed < request.num_prompt_tokens + len(request.made):
                continue
            if not request.made:
                self._save_prefix(request)
            if not np.all(np.isfinite(logits)):
                self._finish(request, Status.FINISHED_ERROR, "the cache has holes")
                continue
            request.made.append(int(np.argmax(logits)))
            request.told("token", request.made[-1])
            if len(request.made) >= request.max_tokens:
                self._finish(request, Status.FINISHED_LENGTH_CAPPED, "")

    def _finish(self, request: Request, status: Status, problem: str) -> None:
        was_loading = request.status is Status.LOADING
        request.status = status
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._running.remove(request)
        if request.blocks:
            later, params = self.scheduler.request_finished(request, request.get_block_ids())
            if later:
                self._held[request.request_id] = request.blocks
            elif not was_loading:  # what is being loaded is free when workers say that it is over
                self._free += request.blocks
                request.blocks = []
        else:
            params = None
        if problem:
            request.told("error", problem)
        else:
            request.told("end", params)

    def _hear_workers(self) -> None:
        failed: set[int] = set()
        received: set[str] = set()
        for worker in self.workers:
            sent, got = worker.get_finished()
            failed |= worker.get_block_ids_with_load_errors()
            for request_id in sent:
                if self._all_reported("sent", request_id):
                    self._free += self._held.pop(request_id, [])
            received |= {request_id for request_id in got if self._all_reported("got", request_id)}
        self._failed_blocks = getattr(self, "_failed_blocks", set()) | failed
        self.scheduler.update_connector_output(_Workers(received))
        for request_id in received:
            self._loaded(self._loading.pop(request_id))

    def _all_reported(self, what: str, request_id: str) -> bool:
        self._reports[what, request_id] = self._reports.get((what, request_id), 0) + 1
        if self._reports[what, request_id] < len(self.workers):
            return False
        del self._reports[what, request_id]
        return True

    def _loaded(self, request: Request) -> None:
        bad = self._failed_blocks & set(request.blocks)
        self._failed_blocks -= bad
        if request.status is not Status.LOADING:  # aborted meanwhile
            self._free += request.blocks
        elif bad:
            request.status = Status.RUNNING
            self._finish(request, Status.FINISHED_ERROR, "the prefix could not be loaded")
        else:
            request.status = Status.RUNNING
            request.computed = request.num_prompt_tokens - 1
            self._running.append(request)
