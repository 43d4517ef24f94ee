# SPDX-License-Identifier: Apache-2.0
"""From prefill to decode instances, in the two roles that inference engines have: one scheduler, and a worker for each rank.

The methods are named as those of vLLM's connectors, and mean the same; nothing here needs vLLM. The scheduler decides which requests are handed over and says so to
the workers in `Metadata`, one for each step of the engine. Failures come back the same way: as blocks that could not be loaded.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from .. import kvplan
from ..engine import TransferEngine
from .bootstrap import Bootstrap, Directory, register
from .control import LoopThread
from .source import Source
from .target import Load, Target

log = logging.getLogger("mooncake.connector")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What both roles of an instance know. bootstrap_port 0: any free port, for instances whose ranks are in one process."""

    engine_id: str
    host: str = "127.0.0.1"
    produces: bool = True
    consumes: bool = True
    bootstrap_host: str = "127.0.0.1"
    bootstrap_port: int = 8998
    protocol: str = "rdma"
    device: str = ""
    tp_size: int = 1
    pp_size: int = 1
    dp_rank: int = 0
    layerwise: bool = True  # layers are announced one by one, otherwise when a step of the engine is over
    attach_timeout: float = 60.0
    handover_timeout: float = 300.0

    @property
    def bootstrap_url(self) -> str:
        host = f"[{self.bootstrap_host}]" if ":" in self.bootstrap_host else self.bootstrap_host
        return f"http://{host}:{self.bootstrap_port}"


@dataclasses.dataclass
class Fetch:
    """A request whose first tokens are to be read from a prefill instance."""

    request: str
    transfer: str
    url: str
    engine_id: str
    first_token: int
    tokens: int
    tables: list[list[int]]


@dataclasses.dataclass
class Offer:
    """A request that others will read: after this step its first `tokens` tokens are in the blocks."""

    request: str
    transfer: str
    tables: list[list[int]]
    tokens: int


@dataclasses.dataclass
class Metadata:
    """From the scheduler to every worker, for one step."""

    fetches: list[Fetch] = dataclasses.field(default_factory=list)
    cancels: list[str] = dataclasses.field(default_factory=list)  # requests
    restarts: list[str] = dataclasses.field(default_factory=list)  # transfers, likewise below
    offers: list[Offer] = dataclasses.field(default_factory=list)
    holds: dict[str, str] = dataclasses.field(default_factory=dict)  # transfer -> request
    drops: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Offered:
    transfer: str
    prompt_tokens: int
    tables: list[list[int]] = dataclasses.field(default_factory=list)


def _lists(tables: Any) -> list[list[int]]:
    """Block numbers by group, whether there are groups or not."""
    tables = list(tables)
    if tables and isinstance(tables[0], int):
        return [tables]
    return [list(table) for table in tables]


class SchedulerSide:
    """Not thread-safe: the scheduler's thread calls it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._next = Metadata()
        self._offered: dict[str, _Offered] = {}  # by request
        self._loading: set[str] = set()
        self.block_groups: int | None = None

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """How many tokens a prefill instance has beyond those that are here, and that they come later."""
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill"):
            return 0, False
        more = max(0, request.num_prompt_tokens - num_computed_tokens)
        return more, more > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_decode"):
            transfer = params.get("transfer_id") or f"{self._settings.engine_id}/{request.request_id}"
            self._offered.setdefault(request.request_id, _Offered(transfer, request.num_prompt_tokens))
        if not params.get("do_remote_prefill"):
            return
        params["do_remote_prefill"] = False  # also if it is scheduled again: what failed once is computed here
        if num_external_tokens == 0:
            return
        url = params.get("remote_bootstrap_addr")
        if not url and params.get("remote_host"):
            url = f"http://{params['remote_host']}:{params['remote_port']}"
        first = request.num_prompt_tokens - num_external_tokens
        self._next.fetches.append(Fetch(
            request.request_id, str(params.get("transfer_id", "")), str(url or ""), str(params.get("remote_engine_id", "")), first, num_external_tokens,
            _lists(blocks.get_block_ids()),
        ))
        self._loading.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Metadata:
        made, self._next = self._next, Metadata()
        for request in getattr(scheduler_output, "preempted_req_ids", None) or ():
            if request in self._offered:
                made.restarts.append(self._offered[request].transfer)
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self._offered:
                self._offered[new.req_id].tables = _lists(new.block_ids)
                self._offer(made, new.req_id, new.num_computed_tokens, scheduler_output)
        cached = scheduler_output.scheduled_cached_reqs
        for at, request in enumerate(cached.req_ids):
            if request not in self._offered:
                continue
            offered, blocks = self._offered[request], cached.new_block_ids[at]
            if _resumed(cached, at):
                offered.tables = _lists(blocks or ())
                if offered.transfer not in made.restarts:
                    made.restarts.append(offered.transfer)
            elif blocks:
                more = _lists(blocks)
                offered.tables = [known + new for known, new in zip(offered.tables, more)] if offered.tables else more
            self._offer(made, request, cached.num_computed_tokens[at], scheduler_output)
        return made

    def _offer(self, made: Metadata, request: str, computed: int, scheduler_output: Any) -> None:
        offered = self._offered[request]
        tokens = min(computed + scheduler_output.num_scheduled_tokens.get(request, 0), offered.prompt_tokens)
        made.offers.append(Offer(request, offered.transfer, [list(table) for table in offered.tables], tokens))

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Whether its blocks are still needed (workers say when not: get_finished()), and what the decode instance has to know."""
        name = request.request_id
        if name in self._loading:
            self._next.cancels.append(name)
        offered = self._offered.pop(name, None)
        if offered is None:
            return False, None
        if "ABORT" in str(getattr(request.status, "name", request.status)).upper():
            self._next.drops.append(offered.transfer)
            return False, None
        self._next.holds[offered.transfer] = name
        settings = self._settings
        return True, {
            "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": offered.transfer, "remote_engine_id": settings.engine_id,
            "remote_bootstrap_addr": settings.bootstrap_url, "remote_host": settings.bootstrap_host, "remote_port": settings.bootstrap_port,
            "remote_request_id": name,
        }

    def update_connector_output(self, connector_output: Any) -> None:
        self._loading -= set(connector_output.finished_recving or ())


def _resumed(cached: Any, at: int) -> bool:
    """Versions of vLLM say it in different ways."""
    if hasattr(cached, "resumed_req_ids"):
        return cached.req_ids[at] in cached.resumed_req_ids
    return bool(cached.resumed_from_preemption[at]) if hasattr(cached, "resumed_from_preemption") else False


class WorkerSide:
    """One rank. Not thread-safe: the worker's thread calls it.

    caches: layer -> memory as kvplan.regions_of_tensor() takes it; axes: what its dimensions are.
    """

    def __init__(self, settings: Settings, *, tp_rank: int = 0, pp_rank: int = 0) -> None:
        self.settings = settings
        self.tp_rank, self.pp_rank = tp_rank, pp_rank
        self.number = pp_rank * settings.tp_size + tp_rank
        self.engine = TransferEngine()
        if self.engine.initialize(settings.host, "P2PHANDSHAKE", settings.protocol, settings.device) != 0:
            raise RuntimeError(f"the transfer engine does not start: {self.engine.last_error()}")
        self._thread = LoopThread("mc-handover")
        self._directory = Directory()
        self._bootstrap: Bootstrap | None = None
        self._source: Source | None = None
        self._target: Target | None = None
        self._metadata = Metadata()
        self._announced: set[str] = set()
        self._request_of: dict[str, str] = {}  # transfer -> request, of those that are held
        self._blocks_of: dict[str, set[int]] = {}  # of requests that are being loaded
        self._load_errors: set[int] = set()
        self.errors: list[str] = []  # the latest, for people
        self.bytes_loaded = self.steps = 0

    def register_kv_caches(self, caches: Mapping[str, Any], regions: Sequence[kvplan.Region]) -> None:
        """regions: of these caches. From here on others can reach us."""
        for cache in storages_of(caches.values()):
            if self.engine.register_memory(*cache) != 0:
                raise RuntimeError(f"KV cache cannot be registered: {self.engine.last_error()}")
        settings = self.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.rank = kvplan.Rank(f"{host}:{self.engine.get_rpc_port()}", list(regions))
        self._target = Target(self._thread, self.engine, self.rank)
        if not settings.produces:
            return
        self._source = Source(
            self._thread, self.rank, host=settings.host, attach_timeout=settings.attach_timeout, handover_timeout=settings.handover_timeout)
        if self.number == 0 and settings.dp_rank == 0:
            self._bootstrap = Bootstrap(self._thread, settings.bootstrap_host, settings.bootstrap_port)
            self.settings = settings = dataclasses.replace(settings, bootstrap_port=self._bootstrap.port)
        self._registration = self._thread.start(register(
            settings.bootstrap_url, engine_id=settings.engine_id, dp_rank=settings.dp_rank, number=self.number,
            world=settings.tp_size * settings.pp_size, address=self._source.address))
        self._registration.add_done_callback(lambda done: None if done.cancelled() or done.exception() is None else log.error("%s", done.exception()))

    def start_load_kv(self, metadata: Metadata) -> None:
        """The beginning of a step."""
        assert self._target is not None
        self._metadata, self._announced = metadata, set()
        for fetch in metadata.fetches:
            self._fetch(fetch)
        for request in metadata.cancels:
            self._target.cancel(request)
        if self._source is None:
            return
        self.handle_preemptions(metadata)
        for transfer in metadata.drops:
            self._source.drop(transfer, "the request was aborted")
        for transfer, request in metadata.holds.items():
            self._request_of[transfer] = request
            self._source.hold(transfer)

    def handle_preemptions(self, metadata: Metadata) -> None:
        """To be called before blocks of preempted requests are overwritten; start_load_kv() does it otherwise."""
        for transfer in metadata.restarts if self._source is not None else ():
            self._source.restart(transfer)
        metadata.restarts = []

    def _fetch(self, fetch: Fetch) -> None:
        assert self._target is not None
        settings = self.settings
        skipped = [fetch.first_token // region.block_tokens for region in self.rank.regions if region.rows == 0]
        first_block = min(skipped, default=0)
        self._blocks_of[fetch.request] = {block for table in fetch.tables for block in table[first_block:]}
        self._target.load(Load(
            fetch.request, fetch.transfer, lambda: self._directory.find(fetch.url, fetch.engine_id), fetch.first_token, fetch.tokens, fetch.tables,
            self.number, settings.tp_size * settings.pp_size, settings.handover_timeout))

    def save_kv_layer(self, layer: str, event: Any = None) -> None:
        """This layer of the step is computed; with an event: once that has come to pass."""
        if self._source is None or not self.settings.layerwise:
            return
        self._announced.add(layer)
        for offer in self._metadata.offers:
            self._source.ready(offer.transfer, offer.tables, offer.tokens, layers=[layer], event=event)

    def wait_for_save(self, event: Any = None) -> None:
        """The end of a step: whatever was not announced layer by layer."""
        if self._source is None:
            return
        layers = [layer for layer in dict.fromkeys(region.layer for region in self.rank.regions) if layer not in self._announced]
        if layers:
            for offer in self._metadata.offers:
                self._source.ready(offer.transfer, offer.tables, offer.tokens, layers=layers, event=event)
        self._metadata = Metadata()

    def get_finished(self) -> tuple[set[str], set[str]]:
        """Requests whose blocks are free of readers, and requests that are loaded, or not (get_block_ids_with_load_errors())."""
        sent, received = set(), set()
        for transfer, reason in self._source.take_finished().items() if self._source is not None else ():
            if transfer in self._request_of:
                sent.add(self._request_of.pop(transfer))
            if reason:
                self._note(f"hand-over {transfer}: {reason}")
        for loaded in self._target.take_finished() if self._target is not None else ():
            received.add(loaded.request)
            blocks = self._blocks_of.pop(loaded.request, set())
            self.bytes_loaded += loaded.bytes
            self.steps += loaded.steps
            if loaded.error:
                self._load_errors |= blocks
                self._note(f"request {loaded.request} was not loaded: {loaded.error}")
        return sent, received

    def get_block_ids_with_load_errors(self) -> set[int]:
        errors, self._load_errors = self._load_errors, set()
        return errors

    def _note(self, text: str) -> None:
        log.warning(text)
        self.errors = [*self.errors[-9:], text]

    def shutdown(self) -> None:
        for part in (self._target, self._source, self._bootstrap):
            if part is not None:
                part.close()
        self._thread.close()
        self.engine.close()


def storages_of(caches: Any) -> list[tuple[int, int]]:
    """Addresses and lengths of the memory of tensors, each once."""
    found: dict[int, int] = {}
    for cache in caches:
        if hasattr(cache, "untyped_storage"):
            storage = cache.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        else:
            while cache.base is not None and hasattr(cache.base, "__array_interface__"):
                cache = cache.base
            found[cache.__array_interface__["data"][0]] = cache.nbytes
    return sorted(found.items())
