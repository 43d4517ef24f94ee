# SPDX-License-Identifier: Apache-2.0
"""As much of vLLM as its connectors need: the base class with its roles, configurations, and an instance whose scheduler and workers call a connector as vLLM does.

As a program it is one instance: commands come as lines of JSON, each is answered with one.
"""

from __future__ import annotations

import abc
import enum
import hashlib
import json
import sys
import time
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LAYERS, HEADS, CHANNELS = 4, 4, 8
PATIENCE_S = 60.0


def install(version: str = "0.11.2", more_abstract: bool = False) -> None:
    """Makes `import vllm` find this."""
    class KVConnectorRole(enum.Enum):
        SCHEDULER = 0
        WORKER = 1

    class KVConnectorMetadata(abc.ABC):
        pass

    class KVConnectorBase_V1(abc.ABC):
        def __init__(self, vllm_config, role, kv_cache_config) -> None:
            assert vllm_config.kv_transfer_config is not None
            self._connector_metadata, self._role = None, role

        def bind_connector_metadata(self, metadata) -> None:
            self._connector_metadata = metadata

        def clear_connector_metadata(self) -> None:
            self._connector_metadata = None

        def _get_connector_metadata(self):
            assert self._connector_metadata is not None
            return self._connector_metadata

    names = ["start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_num_new_matched_tokens", "update_state_after_alloc",
             "build_connector_meta"] + (["do_something_new"] if more_abstract else [])
    for name in names:
        setattr(KVConnectorBase_V1, name, abc.abstractmethod(lambda self, *arguments, **named: None))
    KVConnectorBase_V1.__abstractmethods__ = frozenset(names)
    path = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
    sys.modules["vllm"].__version__ = version
    base = sys.modules[path]
    base.KVConnectorRole, base.KVConnectorMetadata, base.KVConnectorBase_V1 = KVConnectorRole, KVConnectorMetadata, KVConnectorBase_V1


def uninstall() -> None:
    for name in [name for name in sys.modules if name == "vllm" or name.startswith(("vllm.", "mooncake.integrations.vllm_")) or name.endswith("connector_v1")]:
        if not name.endswith("vllm_settings"):
            del sys.modules[name]


def config(*, tp: int = 1, pp: int = 1, rank: int = 0, block_size: int = 16, engine_id: str = "e", role: str = "kv_both", **extra: Any) -> Any:
    extra = {"local_hostname": "127.0.0.1", "mooncake_protocol": "tcp", **extra}
    space = types.SimpleNamespace
    return space(
        kv_transfer_config=space(
            engine_id=engine_id, is_kv_producer=role != "kv_consumer", is_kv_consumer=role != "kv_producer",
            get_from_extra_config=lambda name, otherwise: extra.get(name, otherwise)),
        parallel_config=space(tensor_parallel_size=tp, pipeline_parallel_size=pp, rank=rank, data_parallel_rank=0),
        model_config=space(get_total_num_kv_heads=lambda: HEADS, use_mla=False, model="tiny", dtype="float64", revision=None,
                           get_total_num_hidden_layers=lambda: LAYERS),
        cache_config=space(block_size=block_size, cache_dtype="auto", prefix_caching_hash_algo="sha256"))


@dataclass(eq=False)
class Request:
    request_id: str
    prompt: list[int]
    kv_transfer_params: dict[str, Any] | None
    block_size: int
    blocks: list[int] = field(default_factory=list)
    status: str = "RUNNING"

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def block_hashes(self) -> list[bytes]:
        hashes, before = [], b"seed"
        for at in range(0, len(self.prompt) - self.block_size + 1, self.block_size):
            before = hashlib.sha256(before + repr(self.prompt[at:at + self.block_size]).encode()).digest()
            hashes.append(before)
        return hashes

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (self.blocks,)


def cell(layer: int, part: int, head: int, at: int, token: int) -> np.ndarray:
    """What a model would have written there: it depends on the token and on where it stands."""
    return np.arange(CHANNELS) + 10.0 * head + 1000.0 * layer + 500.0 * part + 1e4 * at + 1e7 * token


class Instance:
    """All ranks in this process; `kind` is the name of the connector's module and class."""

    def __init__(self, kind: str, *, tp: int = 1, pp: int = 1, block_size: int = 16, blocks: int = 32, **options: Any) -> None:
        module, name = kind.split(":")
        made = getattr(__import__(module, fromlist=[name]), name)
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        self.block_size, self.free = block_size, list(range(blocks))[::-1]
        self.held: dict[str, list[int]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.results: dict[str, str] = {}
        self.loading: dict[str, Request] = {}
        self.workers, self.memory, self.first_head = [], [], []
        per_stage = LAYERS // pp
        for rank in range(tp * pp):
            settings = config(tp=tp, pp=pp, rank=rank, block_size=block_size, **options)
            worker = made(settings, KVConnectorRole.WORKER, None)
            heads = HEADS // tp
            stage = rank // tp
            caches = {f"model.layers.{number}.attn": np.full((2, blocks, block_size, heads, CHANNELS), np.nan)
                      for number in range(stage * per_stage, (stage + 1) * per_stage)}
            worker.register_kv_caches(caches)
            self.workers.append(worker)
            self.memory.append(caches)
            self.first_head.append((rank % tp) * heads)
        self.scheduler = made(config(tp=tp, pp=pp, block_size=block_size, **options), KVConnectorRole.SCHEDULER, None)

    def start(self, name: str, prompt: list[int], params: dict[str, Any] | None) -> int:
        """Takes a request up. Returns how many of its tokens come from elsewhere."""
        request = Request(name, prompt, params, self.block_size)
        external, later = self.scheduler.get_num_new_matched_tokens(request, 0)
        assert later == (external > 0)
        request.blocks = [self.free.pop() for _ in range(-(-len(prompt) // self.block_size))]
        self.scheduler.update_state_after_alloc(request, request, external)
        self.loading[name] = request
        return external

    def step(self, new: tuple[Request, int, int] | None = None, again: tuple[Request, int, int] | None = None) -> None:
        """(request, computed, scheduled)"""
        space = types.SimpleNamespace
        output = space(scheduled_new_reqs=[], num_scheduled_tokens={},
                       scheduled_cached_reqs=space(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()))
        for one, is_new in ((new, True), (again, False)):
            if one is None:
                continue
            request, computed, scheduled = one
            output.num_scheduled_tokens[request.request_id] = scheduled
            if is_new:
                output.scheduled_new_reqs.append(space(req_id=request.request_id, block_ids=request.get_block_ids(), num_computed_tokens=computed))
            else:
                cached = output.scheduled_cached_reqs
                cached.req_ids.append(request.request_id)
                cached.new_block_ids.append(None)
                cached.num_computed_tokens.append(computed)
        metadata = self.scheduler.build_connector_meta(output)
        for worker in self.workers:
            worker.bind_connector_metadata(metadata)
            worker.start_load_kv(None)
        for one in (new, again):
            if one is not None:
                self._forward(*one)
        for worker in self.workers:
            worker.wait_for_save()
        self._finish_step()

    def _forward(self, request: Request, computed: int, scheduled: int) -> None:
        for number in range(LAYERS):
            layer = f"model.layers.{number}.attn"
            for worker, caches, first in zip(self.workers, self.memory, self.first_head):
                if layer not in caches:
                    continue
                for at in range(computed, computed + scheduled):
                    block, slot = request.blocks[at // self.block_size], at % self.block_size
                    for part in range(2):
                        for head in range(caches[layer].shape[3]):
                            caches[layer][part, block, slot, head] = cell(number, part, first + head, at, request.prompt[at])
                worker.save_kv_layer(layer, caches[layer], None)

    def _finish_step(self) -> None:
        bad: set[int] = set()
        received_by_all: set[str] = set()
        for worker in self.workers:
            sent, received = worker.get_finished(set())
            bad |= worker.get_block_ids_with_load_errors()
            worker.clear_connector_metadata()
            for what, names in (("sent", sent or ()), ("received", received or ())):
                for name in names:
                    self.counts[what, name] = self.counts.get((what, name), 0) + 1
                    if self.counts[what, name] == len(self.workers):
                        del self.counts[what, name]
                        if what == "sent":
                            self.free += self.held.pop(name)
                        else:
                            received_by_all.add(name)
        self.bad = getattr(self, "bad", set()) | bad
        self.scheduler.update_connector_output(types.SimpleNamespace(finished_recving=received_by_all))
        for name in received_by_all:
            self.results[name] = "failed" if self.bad & set(self.loading[name].blocks) else "loaded"

    def finish(self, name: str, status: str = "FINISHED_LENGTH_CAPPED") -> dict[str, Any] | None:
        request = self.loading.pop(name)
        request.status = types.SimpleNamespace(name=status)  # type: ignore[assignment]
        later, params = self.scheduler.request_finished(request, request.blocks)
        if later:
            self.held[name] = request.blocks
        else:
            self.free += request.blocks
        return params

    def prefill(self, name: str, prompt: list[int], params: dict[str, Any] | None, chunk: int = 20) -> dict[str, Any] | None:
        """A whole request as a prefill instance sees it; what the store has is not computed."""
        here = self.start(name, prompt, params)
        if here:
            self.run_until(lambda: name in self.results)
            assert self.results[name] == "loaded"
        for at in range(here, len(prompt), chunk):
            one = (self.loading[name], at, min(chunk, len(prompt) - at))
            self.step(new=one) if at == here else self.step(again=one)
        return self.finish(name)

    def run_until(self, done) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end, "it did not come to pass"
            self.step()

    def wrong(self, name: str, tokens: int | None = None) -> int:
        request = self.loading[name]
        count = 0
        for caches, first in zip(self.memory, self.first_head):
            for layer, memory in caches.items():
                number = int(layer.split(".")[2])
                for at in range(len(request.prompt) if tokens is None else tokens):
                    block, slot = request.blocks[at // self.block_size], at % self.block_size
                    for part in range(2):
                        for head in range(memory.shape[3]):
                            count += not np.array_equal(memory[part, block, slot, head], cell(number, part, first + head, at, request.prompt[at]))
        return count

    def close(self) -> None:
        for one in (*self.workers, self.scheduler):
            one.shutdown()


def main() -> None:
    """A prefill instance in a process of its own."""
    options = json.loads(sys.argv[1])
    install()
    instance = Instance(options.pop("kind"), **options)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        call, arguments = json.loads(line)
        if call == "start_and_stop_half_way":  # the next line may find us dead
            instance.start(*arguments)
            request = instance.loading[arguments[0]]
            instance.step(new=(request, 0, len(request.prompt) // 2))
            answer: Any = None
        elif call == "settle":
            instance.run_until(lambda: not instance.held)
            answer = len(instance.free)
        else:
            answer = getattr(instance, call)(*arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
