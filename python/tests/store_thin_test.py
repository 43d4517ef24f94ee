# SPDX-License-Identifier: Apache-2.0
"""Every call of the store, by a thin client. What many of them do to each other is in tests/integration/thin_clients_test.py."""

import ctypes
import os
import random
import subprocess

import pytest
from mooncake.store import BufferPool, MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig
from store_helpers import PATIENCE_S, PROGRAMS, Master, MiB


@pytest.fixture(scope="module")
def port():
    master = Master()
    number = random.randrange(1024, 65536)
    node = subprocess.Popen([str(PROGRAMS / "mooncake_client"), f"--port={number}", "--host=127.0.0.1", "--metadata_server=P2PHANDSHAKE",
                             f"--master_server_address={master.address}", "--global_segment_size=128MB"], stdout=subprocess.PIPE, text=True)
    assert "lends" in node.stdout.readline()
    yield number
    node.terminate()
    assert node.wait(PATIENCE_S) == 0
    master.stop()


@pytest.fixture
def store(port):
    thin = MooncakeDistributedStore()
    assert thin.setup_dummy(0, 4 * MiB, f"127.0.0.1:{port}") == 0
    yield thin
    thin.remove_all(force=True)
    thin.close()


@pytest.fixture
def memory(store):
    address = store.alloc_from_mem_pool(4 * MiB)
    assert address != 0 and store.register_buffer(address, 4 * MiB) == 0
    return address


def fill(address: int, value: bytes) -> None:
    ctypes.memmove(address, value, len(value))


def test_objects(store):
    value = os.urandom(100_000)
    assert store.put("a", value) == 0 and store.get("a") == value
    assert store.put("a", b"other") == 0 and store.get("a") == value, "a put does not replace"
    assert store.upsert("a", b"other") == 0 and store.get("a") == b"other"
    assert store.put_parts("p", b"one", b"two") == 0 and store.get("p") == b"onetwo"
    assert store.put_batch(["x", "y"], [b"1", b"22"]) == 0 and store.get_batch(["x", "none", "y"]) == [b"1", b"", b"22"]
    assert store.is_exist("x") == 1 and store.batch_is_exist(["x", "none"]) == [1, 0]
    assert store.get_size("y") == 2 and store.get_size("none") == -704
    assert bytes(memoryview(store.get_buffer("a"))) == b"other" and store.get_buffer("none") is None
    assert [handle is None for handle in store.batch_get_buffer(["x", "none"])] == [False, True]
    assert store.remove("x", force=True) == 0 and store.remove("x") == -704
    assert store.batch_remove(["y", "none"], force=True) == [0, -704]
    assert store.remove_by_regex("^p$", force=True) == 1 and store.remove_all(force=True) == 1
    assert store.put("empty", b"") == -600


def test_values_longer_than_the_working_memory(store):
    value = os.urandom(9 * MiB)
    assert store.put("long", value) == 0 and store.get("long") == value
    assert store.get_buffer("long") is None, "there is no room for it"


def test_memory_that_is_shared(store, memory):
    value = os.urandom(MiB)
    fill(memory, value)
    assert store.put_from("a", memory, MiB) == 0
    assert store.get_into("a", memory + 2 * MiB, MiB) == MiB and ctypes.string_at(memory + 2 * MiB, MiB) == value
    assert store.get_into("a", memory, MiB - 1) == -600
    assert store.batch_put_from(["b", "c"], [memory, memory + 7], [10, 20]) == [0, 0]
    assert store.batch_get_into(["b", "none", "c"], [memory + MiB] * 3, [100] * 3) == [10, -704, 20]
    assert store.batch_put_from_multi_buffers(["m"], [[memory, memory + 100]], [[10, 20]]) == [0]
    assert store.get("m") == value[:10] + value[100:120]
    assert store.batch_get_into_multi_buffers(["m"], [[memory + 3 * MiB, memory + 3 * MiB + 64]], [[25, 25]]) == [30]
    assert ctypes.string_at(memory + 3 * MiB + 64, 5) == value[115:120]
    assert store.put_from_with_metadata("d", memory + 5, memory, 20, 5) == 0 and store.get("d") == value[:25]
    assert store.get_into_ranges([memory + MiB], [["a"]], [[[0, 50]]], [[[500, 0]]], [[[10, 10]]]) == [[[10, 10]]]
    assert ctypes.string_at(memory + MiB, 10) == value[500:510]


def test_memory_that_is_not_shared_is_copied(store):
    value = os.urandom(MiB)
    source, target = ctypes.create_string_buffer(value, MiB), ctypes.create_string_buffer(MiB)
    assert store.put_from("a", ctypes.addressof(source), MiB) == 0
    assert store.get_into("a", ctypes.addressof(target), MiB) == MiB and target.raw == value
    assert store.register_buffer(ctypes.addressof(target), MiB) == 0
    assert store.are_buffers_mapped([ctypes.addressof(target)]) == [0]
    assert store.get_into_ranges([ctypes.addressof(target)], [["a"]], [[[3]]], [[[0]]], [[[7]]]) == [[[7]]]
    assert store.unregister_buffer(ctypes.addressof(target)) == 0
    assert store.put_from("b", 4096, MiB) == -600 and store.get_into("a", 4096, MiB) == -600, "nothing is mapped there"


def test_host_memory_allocator(store):
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(MiB)
    assert store.register_buffer(address + 4096, 8192) == 0 and store.register_buffer(address, MiB) == 0
    assert store.are_buffers_mapped([address]) == [1]
    fill(address, b"hello")
    assert store.unregister_buffer(address + 4096) == 0 and store.are_buffers_mapped([address]) == [1]
    assert store.put_from("k", address, 5) == 0 and store.get("k") == b"hello"
    assert allocator.free(address) == 0 and allocator.free(address) == -1
    assert store.put_from("l", address, 5) == 0, "it stays until the registration ends"
    assert store.unregister_buffer(address) == 0 and store.unregister_buffer(address) == -600
    assert store.put_from("m", address, 5) == -600


def test_sessions(store, memory):
    value = os.urandom(1000)
    fill(memory, value)
    assert store.batch_put_session_start(["s"], [1000]) == [0] and store.batch_put_session_start(["s"], [1000]) == [-600]
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[memory, memory + 600]], [[600, 400]], [[0, 600]]) == [1000]
    assert store.batch_put_session_end(["s"]) == [0]
    assert store.batch_get_session_start(["s", "none"]) == [0, -704]
    assert store.batch_get_into_multi_buffer_ranges(["s"], [[memory + MiB]], [[500]], [[500]]) == [500]
    assert ctypes.string_at(memory + MiB, 500) == value[500:]
    assert store.batch_get_session_end(["s"]) == 0
    assert store.batch_put_session_start(["t"], [1000]) == [0] and store.batch_put_session_revoke(["t"]) == [0]


def test_replicas_tasks_and_configurations(store):
    config = ReplicateConfig()
    config.with_hard_pin = True
    assert store.put("a", b"value", config) == 0
    (replica,) = store.get_replica_desc("a")
    assert replica.is_memory_replica() and set(store.batch_get_replica_desc(["a", "none"])) == {"a"}
    assert store.get_offload_rpc_read_count() == 0
    (high, low), code = store.create_copy_task("a", ["nowhere:1"])
    assert (high, low) == (0, 0) and code < 0
    assert store.mount_segment("/nowhere", 4096)["ret"] == -1 and store.unmount_local_disk_segment() == -1
    config.prefer_alloc_in_same_node = True
    assert store.put("b", b"value", config) == -600


def test_buffer_pool(store):
    pool = BufferPool(store)
    lease = pool.acquire(1000)
    assert store.put("k", b"x" * 1000) == 0
    assert store.get_into("k", lease.ptr, 1000) == 1000 and ctypes.string_at(lease.ptr, 1000) == b"x" * 1000
    lease.release()


def test_life(port, store):
    assert store.health_check() == 0 and store.get_hostname() == ""
    assert isinstance(store.get_metrics(), str)
    store.put("k", b"v")
    assert store.setup_dummy(0, 0, f"127.0.0.1:{port}") == 0, "it is closed first"
    assert store.get("k") == b"" and store.put("l", b"v") == -600, "without working memory"
    assert store.close() == 0 and store.health_check() == 1 and store.alloc_from_mem_pool(4096) == 0
    assert store.setup_dummy(0, MiB, f"127.0.0.1:{port}") == 0 and store.get("k") == b"v"
    child = os.fork()
    if child == 0:
        os._exit(0 if store.health_check() == 1 and store.is_exist("k") == -600 else 1)
    assert os.waitpid(child, 0)[1] == 0 and store.get("k") == b"v"


def test_bad_arguments(monkeypatch):
    monkeypatch.setenv("MC_BRIDGE_RECONNECT_WAIT_MS", "50")
    store = MooncakeDistributedStore()
    for address in ("", "nonsense", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:1"):
        assert store.setup_dummy(0, MiB, address) == -1
    assert store.setup_dummy(0, -1, "127.0.0.1:1") == -1 and store.setup_dummy(-1, 0, "127.0.0.1:1") == -1
    with pytest.raises(TypeError):
        store.setup_dummy(0, MiB, 50052)
    with pytest.raises(TypeError):
        store.setup_dummy(0, "1MB", "127.0.0.1:1")
    assert store.health_check() == 1
