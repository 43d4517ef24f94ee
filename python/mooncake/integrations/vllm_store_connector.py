# SPDX-License-Identifier: Apache-2.0
"""vLLM's connector to prefixes in the store, which instances of any tensor parallelism share. Importing this imports vLLM.

    --kv-transfer-config '{"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both",
                           "kv_connector_module_path": "mooncake.integrations.vllm_store_connector"}'

The store is found as `mooncake.mooncake_config` does (MOONCAKE_CONFIG_PATH, MOONCAKE_MASTER). Extra configuration: store_tensor_parallelisms (all that share the
store; else this one), store_stages (how many layers lie together, for pipelines), key_prefix.
"""

from __future__ import annotations

from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

from .. import kvplan
from ..mooncake_config import MooncakeConfig
from ..store import MooncakeDistributedStore
from .prefix_roles import StoreMetadata, StoreSchedulerSide, StoreWorkerSide, make_grid
from .prefix_store import PrefixStore, RankStore, side_of
from .vllm_connector import device_event, start_base
from .vllm_settings import check_hash_seed, check_version, namespace_from, ranks_of, regions_from, settings_from


class MooncakeStoreConnectorMetadata(StoreMetadata, KVConnectorMetadata):
    """What the scheduler tells workers for one step."""


def open_store(config: MooncakeConfig, host: str, segment_bytes: int) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    code = store.setup(host, config.metadata_server, segment_bytes, 0, config.protocol, config.device_name or "", config.master_server_address)
    if code != 0:
        raise RuntimeError(f"the store at {config.master_server_address} cannot be used: {code}")
    return store


class MooncakeStoreConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        start_base(self, vllm_config, role, kv_cache_config)
        check_hash_seed()
        self._config = vllm_config
        self._settings = settings_from(vllm_config)
        extra, model = vllm_config.kv_transfer_config.get_from_extra_config, vllm_config.model_config
        self._heads = 1 if getattr(model, "use_mla", False) else int(model.get_total_num_kv_heads())
        sizes = [self._settings.tp_size, *extra("store_tensor_parallelisms", [])]
        self._cuts = kvplan.head_cuts_for(self._heads, sizes)
        layers = int(model.get_total_num_hidden_layers()) if hasattr(model, "get_total_num_hidden_layers") else int(model.hf_config.num_hidden_layers)
        self._stages = list(extra("store_stages", [])) or kvplan.vllm_stages(layers, self._settings.pp_size)
        self._name = namespace_from(vllm_config, self._settings)
        self._scheduler: StoreSchedulerSide | None = None
        self._worker: StoreWorkerSide | None = None
        self._caches: dict[str, Any] = {}
        where = MooncakeConfig.load_from_env()
        self._store = open_store(where, self._settings.host, 0 if role == KVConnectorRole.SCHEDULER else where.global_segment_size)
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = StoreSchedulerSide(PrefixStore(self._store, self._grid([]), self._name))

    def _grid(self, regions: list[kvplan.Region]) -> kvplan.ShardGrid:
        return make_grid(regions, self._stages, self._cuts, int(self._config.cache_config.block_size))

    # ---- scheduler

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._of_scheduler().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._of_scheduler().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return MooncakeStoreConnectorMetadata(**vars(self._of_scheduler().build_connector_meta(scheduler_output)))

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self._of_scheduler().request_finished(request, block_ids)

    def update_connector_output(self, connector_output: Any) -> None:
        self._of_scheduler().update_connector_output(connector_output)

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        from .handover import storages_of

        self._caches = kv_caches
        for address, length in storages_of(kv_caches.values()):
            if self._store.register_buffer(address, length) != 0:
                raise RuntimeError("KV cache cannot be registered with the store")
        tp_rank, _ = ranks_of(self._config, self._settings)
        regions = regions_from(self._config, self._settings, tp_rank, kv_caches)
        side = side_of(kvplan.Rank("here", regions), self._settings.tp_size, self._heads)
        self._worker = StoreWorkerSide(RankStore(self._store, self._grid(regions), self._name, side, tp_rank))

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self._of_worker().wait_for_all_saves()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._of_worker().start_load_kv(self._get_connector_metadata())  # type: ignore[arg-type]

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Requests are computed once all of it was loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are stored when all of their layers are there."""

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
        self._store.close()

    def _of_scheduler(self) -> StoreSchedulerSide:
        assert self._scheduler is not None, "a worker was asked for what the scheduler does"
        return self._scheduler

    def _of_worker(self) -> StoreWorkerSide:
        assert self._worker is not None, "the scheduler was asked for what a worker does, or no cache was registered"
        return self._worker


check_version(vllm.__version__, sorted(getattr(MooncakeStoreConnector, "__abstractmethods__", ())))
