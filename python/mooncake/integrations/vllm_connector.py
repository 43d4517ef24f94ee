# SPDX-License-Identifier: Apache-2.0
"""vLLM's connector from prefill to decode instances, layer by layer, between any tensor and pipeline parallelisms. Importing this imports vLLM.

    --kv-transfer-config '{"kv_connector": "MooncakeConnector", "kv_role": "kv_producer",
                           "kv_connector_module_path": "mooncake.integrations.vllm_connector"}'
"""

from __future__ import annotations

import inspect
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

from .handover import Metadata, SchedulerSide, WorkerSide
from .vllm_settings import check_version, ranks_of, regions_from, settings_from


class MooncakeConnectorMetadata(Metadata, KVConnectorMetadata):
    """What the scheduler tells workers for one step."""


def start_base(connector: KVConnectorBase_V1, config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
    """Later versions of vLLM hand one more argument on."""
    base = KVConnectorBase_V1.__init__
    given = (config, role, kv_cache_config) if len(inspect.signature(base).parameters) > 3 else (config, role)
    base(connector, *given)


def device_event(tensor: Any) -> Any:
    """Recorded on the current stream, where the tensor is a device's."""
    if not getattr(tensor, "is_cuda", False):
        return None
    import torch

    event = torch.cuda.Event()
    event.record()
    return event


class MooncakeConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        start_base(self, vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._settings = settings_from(vllm_config)
        self._scheduler = SchedulerSide(self._settings) if role == KVConnectorRole.SCHEDULER else None
        self._worker: WorkerSide | None = None
        self._caches: dict[str, Any] = {}
        if role == KVConnectorRole.WORKER:
            tp_rank, pp_rank = ranks_of(vllm_config, self._settings)
            self._worker = WorkerSide(self._settings, tp_rank=tp_rank, pp_rank=pp_rank)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Heads outside of tokens, so that a share of the heads of a block is one piece."""
        return None if getattr(vllm_config.model_config, "use_mla", False) else "HND"

    # ---- scheduler

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._of_scheduler().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._of_scheduler().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return MooncakeConnectorMetadata(**vars(self._of_scheduler().build_connector_meta(scheduler_output)))

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self._of_scheduler().request_finished(request, block_ids)

    def update_connector_output(self, connector_output: Any) -> None:
        self._of_scheduler().update_connector_output(connector_output)

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        worker = self._of_worker()
        self._caches = kv_caches
        worker.register_kv_caches(kv_caches, regions_from(self._config, self._settings, worker.tp_rank, kv_caches))

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self._of_worker().handle_preemptions(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._of_worker().start_load_kv(self._get_connector_metadata())  # type: ignore[arg-type]

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Requests are computed once all of it was loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        self._of_worker().save_kv_layer(layer_name, device_event(kv_layer))

    def wait_for_save(self) -> None:
        self._of_worker().wait_for_save(device_event(next(iter(self._caches.values()), None)))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, received = self._of_worker().get_finished()
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._of_worker().get_block_ids_with_load_errors()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()

    def _of_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "a worker was asked for what the scheduler does"
        return self._scheduler

    def _of_worker(self) -> WorkerSide:
        assert self._worker is not None, "the scheduler was asked for what a worker does"
        return self._worker


check_version(vllm.__version__, sorted(getattr(MooncakeConnector, "__abstractmethods__", ())))
