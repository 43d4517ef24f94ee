# SPDX-License-Identifier: Apache-2.0
"""What serving frameworks do with the store, call by call as they do it, and the rules of behaviour they rely on."""

import ctypes
import gc
import inspect
import time

import numpy as np
import pytest

from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, ObjectDataType, ReplicateConfig
from store_helpers import MiB, Memory, open_store, random_bytes


def pages(memory: Memory, count: int, size: int) -> list[int]:
    for i in range(count):
        memory.fill(random_bytes(size, i), i * size)
    return [memory.address + i * size for i in range(count)]


def test_block_store_of_vllm(master, memory):
    """Setup by position, then per save: who exists, and one value per block out of one piece per layer."""
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 * MiB, 64 * MiB, "rdma", "", master.address, tenant_id="default") == 0
    assert store.register_buffer(memory.address, memory.size) == 0
    layers, blocks, size = 4, 8, 8192
    where = pages(memory, layers * blocks, size)
    keys = [f"model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{i:064x}" for i in range(blocks)]
    lists = [[where[layer * blocks + i] for layer in range(layers)] for i in range(blocks)]
    sizes = [[size] * layers] * blocks
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    config.group_ids = ["request"] * blocks
    assert store.batch_is_exist(keys) == [0] * blocks
    assert store.batch_put_from_multi_buffers(keys, lists, sizes, config) == [0] * blocks
    assert store.batch_put_from_multi_buffers(keys, lists, sizes, config) == [0] * blocks  # another rank was faster
    assert store.batch_is_exist([*keys, "other"]) == [1] * blocks + [0]
    before = memory.bytes(0, layers * blocks * size)
    memory.array[:] = 0
    assert store.batch_get_into_multi_buffers(keys, lists, sizes) == [size * layers] * blocks
    assert memory.bytes(0, layers * blocks * size) == before
    tiers = store.batch_get_replica_desc(keys)
    assert all(replica.is_memory_replica() and not replica.is_disk_replica() and not replica.is_local_disk_replica() for replica in tiers[keys[0]])
    assert store.remove_all(force=True) == blocks
    assert store.close() == 0


def test_hierarchical_cache_of_sglang(master):
    """Many stores, an engine as eighth argument, warm-up, keywords dropped by name, host memory from the allocator."""
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    store = MooncakeDistributedStore()
    options = {"enable_ssd_offload": False, "tenant_id": "default", "not_known_yet": 1}
    while True:
        try:
            code = store.setup(f"127.0.0.1:{engine.get_rpc_port()}", "P2PHANDSHAKE", 32 * MiB, 16 * MiB, "rdma", "", master.address, engine.get_engine(),
                               **options)
            break
        except TypeError as error:
            dropped = [name for name in options if name in str(error)]
            assert dropped == ["not_known_yet"]
            del options[dropped[0]]
    assert code == 0
    assert store.put("warmup", bytes(4096)) == 0 and store.is_exist("warmup") == 1 and store.get("warmup") == bytes(4096)
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(4 * MiB)
    ctypes.memset(address, 3, 4 * MiB)
    assert store.register_buffer(address, 4 * MiB) == 0
    keys = [f"model_{i}_0_{part}" for i in range(16) for part in "kv"]
    pointers, sizes = [address + i * 65536 for i in range(32)], [65536] * 32
    assert store.batch_put_from(keys, pointers, sizes) == [0] * 32
    ctypes.memset(address, 0, 4 * MiB)
    assert all(length > 0 for length in store.batch_get_into(keys, pointers, sizes))
    assert ctypes.string_at(address, 2 * MiB) == b"\3" * (2 * MiB)
    assert store.batch_is_exist(["none"])[0] == 0
    others = [open_store(master.address, segment=16 * MiB) for _ in range(5)]  # never closed by hand
    del others
    gc.collect()
    assert store.close() == 0
    assert allocator.free(address) == 0
    engine.close()


def test_connector_of_lmcache(master):
    """A dict with other spellings and keys of its own; values as metadata and data; buffers for torch.frombuffer."""
    store = MooncakeDistributedStore()
    assert store.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": str(32 * MiB), "local_buffer_size": str(16 * MiB),
                        "protocol": "tcp", "device_name": "", "master_server_address": master.address, "transfer_timeout": "1",
                        "storage_root_dir": "", "prefer_local_alloc": "True"}) == 0
    config = ReplicateConfig()
    config.replica_num, config.preferred_segment = 1, store.get_hostname()
    metadata, data = b"\1" * 28, memoryview(random_bytes(50_000))
    assert store.put_parts("chunk", metadata, data) == 0
    assert bool(store.is_exist("chunk")) and not store.is_exist("none")
    found, missing = store.batch_get_buffer(["chunk", "none"])
    assert missing is None
    assert np.frombuffer(found, np.uint8, offset=28).tobytes() == data and np.frombuffer(found, np.uint8, count=28).tobytes() == metadata
    memory = Memory(MiB)
    assert store.register_buffer(memory.address, memory.size) == 0
    assert store.put_from("direct", memory.fill(bytes(data)), 50_000, config) == 0
    assert store.batch_get_into(["direct", "none"], [memory.address + 100_000] * 2, [60_000] * 2) == [50_000, -704]
    assert store.unregister_buffer(memory.address) == 0
    assert store.close() == 0
    assert bytes(found)[28:] == data


def test_store_backend_of_vllm_ascend(master, memory):
    """All keywords, an engine of its own, memory on the writer's host."""
    assert "enable_ssd_offload" in inspect.signature(MooncakeDistributedStore.setup).parameters
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "ascend", "") == 0
    store = MooncakeDistributedStore()
    assert store.setup(local_hostname=f"127.0.0.1:{engine.get_rpc_port()}", metadata_server="P2PHANDSHAKE", global_segment_size=32 * MiB, local_buffer_size=16 * MiB,
                       protocol="ascend", rdma_devices="", master_server_addr=master.address, engine=engine.get_engine(), enable_ssd_offload=False,
                       ssd_offload_path="") == 0
    config = ReplicateConfig()
    config.preferred_segment, config.prefer_alloc_in_same_node = store.get_hostname(), True
    where = pages(memory, 4, 1000)
    assert store.batch_put_from_multi_buffers(["a", "b"], [where[:2], where[2:]], [[1000, 1000]] * 2, config) == [0, 0]
    assert store.batch_get_into_multi_buffers(["a", "b"], [where[2:], where[:2]], [[1000, 1000]] * 2, True) == [2000, 2000]
    assert memory.bytes(0, 1000) == random_bytes(1000, 2)
    assert store.close() == 0
    engine.close()


def test_layer_wise_loading_of_sglang(master, memory):
    """Pages of all layers are one value each; they are read layer by layer, and requests of a batch may share a page."""
    store = open_store(master.address)
    assert store.register_buffer(memory.address, memory.size) == 0
    layers, size = 4, 6000
    where = pages(memory, 3 * layers, size)
    keys = [f"model_{i}_cp0_pp0" for i in range(3)]
    assert store.batch_put_from_multi_buffers(keys, [where[i * layers:(i + 1) * layers] for i in range(3)], [[size] * layers] * 3, ReplicateConfig()) == [0] * 3
    wanted = [keys[0], keys[1], keys[0], keys[2]]
    target = [memory.address + memory.size // 2 + i * layers * size for i in range(len(wanted))]
    assert store.batch_get_session_start(wanted) == [0] * len(wanted)
    for layer in range(layers):
        offset = layer * size
        assert store.batch_get_into_multi_buffer_ranges(wanted, [[at + offset, at + offset + 1000] for at in target], [[1000, size - 1000]] * len(wanted),
                                                        [[offset, offset + 1000]] * len(wanted)) == [size] * len(wanted)
    store.batch_get_session_end(wanted)
    for at, key in zip(target, wanted):
        first = keys.index(key) * layers
        assert memory.bytes(at - memory.address, layers * size) == b"".join(random_bytes(size, first + layer) for layer in range(layers))
    assert store.batch_get_into_multi_buffer_ranges(wanted[:1], [target[:1]], [[size]], [[0]]) == [-600]
    assert store.close() == 0


def test_embedding_cache_of_vllm(master):
    """A header and a tensor that is registered for one put; read side by side into one buffer. Codes it does not know end its worker."""
    store = open_store(master.address)
    config = ReplicateConfig()
    config.data_type = ObjectDataType.TENSOR
    header = ctypes.create_string_buffer(b"h" * 24, 24)
    assert store.register_buffer(ctypes.addressof(header), 24) == 0
    tensors = [np.frombuffer(random_bytes(length, length), np.uint8) for length in (70_001, 333)]
    for tensor in tensors:
        assert store.register_buffer(tensor.ctypes.data, tensor.nbytes) == 0
        assert store.batch_put_from_multi_buffers([f"e{tensor.nbytes}"], [[ctypes.addressof(header), tensor.ctypes.data]], [[24, tensor.nbytes]], config) == [0]
        assert store.unregister_buffer(tensor.ctypes.data) == 0
    buffer = Memory(MiB)
    assert store.register_buffer(buffer.address, buffer.size) == 0
    sizes = [24 + 70_001, 24 + 333, 24 + 10, 24 + 10]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    results = store.batch_get_into(["e70001", "e333", "none", "e333"], [buffer.address + offset for offset in offsets], sizes)
    assert results == [*sizes[:2], -704, -600] and all(type(result) is int for result in results)
    for offset, tensor in zip(offsets, tensors):
        assert buffer.bytes(offset, 24 + tensor.nbytes) == b"h" * 24 + tensor.tobytes()
    assert store.unregister_buffer(buffer.address) == 0
    assert store.unregister_buffer(ctypes.addressof(header)) == 0
    assert store.close() == 0


# ---- rules


def test_memory_may_be_registered_more_than_once(make_store, memory):
    first, second = make_store(), make_store()
    for store in (first, second):
        assert store.register_buffer(memory.address, memory.size) == 0
    assert first.register_buffer(memory.address, memory.size) == 0
    assert first.register_buffer(memory.address + 4096, 4096) == 0
    memory.fill(b"value")
    assert first.put_from("k", memory.address, 5) == 0 and second.get_into("k", memory.address + 4096, 5) == 5
    assert first.unregister_buffer(memory.address) == 0
    assert first.get_into("k", memory.address + 100, 5) == 5
    assert second.unregister_buffer(memory.address) == 0


def test_key_that_exists_is_readable_for_the_lease_time(make_store):
    """While a pool is written over and over, what was reported stays."""
    store = make_store(segment=16 * MiB)
    assert store.put("promised", random_bytes(100_000)) == 0
    reader = make_store(segment=0)
    assert reader.is_exist("promised") == 1
    end = time.monotonic() + 1.0  # the master's lease time is 2 s
    i = 0
    while time.monotonic() < end:
        assert store.put(f"k{i}", bytes(MiB)) == 0
        i += 1
    assert reader.get("promised") == random_bytes(100_000)


def test_full_pool_takes_new_values_under_a_storm_of_questions(make_store):
    store = make_store(segment=16 * MiB)
    keys = []
    for i in range(60):
        keys.append(f"k{i}")
        assert store.put(keys[-1], bytes(MiB)) == 0
        assert store.batch_is_exist(keys)[-1] == 1


@pytest.mark.parametrize("protocol", ["tcp", "rdma", "TCP", "efa"])
def test_any_protocol_works_on_a_machine_without_devices(master, protocol):
    with MooncakeDistributedStore() as store:
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MiB, 16 * MiB, protocol, "auto-discovery", master.address) == 0
        assert store.put("k", b"v") == 0 and store.get("k") == b"v"
