# SPDX-License-Identifier: Apache-2.0
"""Values on disk: how a store is told to keep them there, and that every call finds them."""

import os
import time

import numpy as np
import pytest

from conftest import Master
from mooncake.store import MooncakeDistributedStore
from store_helpers import MiB, Memory, random_bytes

INVALID = -600


@pytest.fixture(scope="module")
def disk_master():
    process = Master("--default_kv_lease_ttl=500", "--enable_offload=true")
    yield process
    process.stop()


def setup(store, master, path, **options):
    return store.setup("127.0.0.1", "P2PHANDSHAKE", options.pop("segment", 16 * MiB), 16 * MiB, "tcp", "", master.address,
                       enable_ssd_offload=True, ssd_offload_path=path, **options)


def eventually(condition, patience=60.0):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("path", ["relative/path", "/no/such/directory", "/tmp/../tmp", "/etc/passwd", "/tmp/with\0null", 5])
def test_a_path_that_makes_no_sense_is_refused(master, path, tmp_path):
    store = MooncakeDistributedStore()
    assert setup(store, master, path) == INVALID
    assert setup(store, master, str(tmp_path)) == 0, "and the same store may be set up afterwards"
    assert store.close() == 0


def test_a_symbolic_link_is_refused(master, tmp_path):
    os.symlink(tmp_path, tmp_path / "link")
    store = MooncakeDistributedStore()
    assert setup(store, master, str(tmp_path / "link")) == INVALID


@pytest.mark.parametrize("name, value", [("STORAGE_BACKEND_DESCRIPTOR", "memcached"), ("TOTAL_SIZE_LIMIT_BYTES", "much"),
                                         ("DISK_EVICTION_HIGH_WATERMARK_RATIO", "2"), ("BUCKET_EVICTION_POLICY", "random")])
def test_variables_that_make_no_sense_are_refused(master, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_" + name, value)
    store = MooncakeDistributedStore()
    assert setup(store, master, str(tmp_path)) == INVALID


def test_the_path_may_come_from_the_environment_and_a_dict(master, tmp_path, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(tmp_path))
    monkeypatch.setenv("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "file_per_key_storage_backend")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1")
    store = MooncakeDistributedStore()
    assert store.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": master.address,
                        "enable_ssd_offload": "true"}) == 0
    assert (tmp_path / "segment").exists()
    assert store.unmount_local_disk_segment() == 0
    assert store.unmount_local_disk_segment(1) == 0
    assert store.close() == 0


def test_processes_that_are_given_the_same_directory_share_it(master, tmp_path):
    first, second = MooncakeDistributedStore(), MooncakeDistributedStore()
    assert setup(first, master, str(tmp_path)) == 0
    assert setup(second, master, str(tmp_path)) == 0
    assert (tmp_path / "node-1" / "segment").exists()
    assert first.close() == 0 and second.close() == 0


def test_every_call_finds_values_that_lie_on_disk_alone(disk_master, tmp_path):
    values = {f"k{i}": random_bytes(200_000, i) for i in range(20)}
    node, reader = MooncakeDistributedStore(), MooncakeDistributedStore()
    assert setup(node, disk_master, str(tmp_path)) == 0
    for key, value in values.items():
        assert node.put(key, value) == 0
    assert eventually(lambda: all(any(r.is_local_disk_replica() for r in node.get_replica_desc(key)) for key in values))
    assert node.close() == 0
    node = MooncakeDistributedStore()
    assert setup(node, disk_master, str(tmp_path)) == 0  # its memory is empty now
    assert reader.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 * MiB, "tcp", "", disk_master.address) == 0
    assert eventually(lambda: reader.batch_is_exist(list(values)) == [1] * len(values))
    for store in (node, reader):
        replicas = store.get_replica_desc("k3")
        assert [r.is_memory_replica() for r in replicas] == [False]
        with pytest.raises(RuntimeError):
            replicas[0].get_memory_descriptor()
        assert store.get("k0") == values["k0"]
        assert store.get_size("k1") == 200_000
        assert store.get_batch(["k1", "k2", "none"]) == [values["k1"], values["k2"], b""]
        assert bytes(store.get_buffer("k3")) == values["k3"]
        memory = Memory(1 << 20)
        assert store.register_buffer(memory.address, memory.size) == 0
        assert store.get_into("k4", memory.address, 200_000) == 200_000
        assert memory.bytes(0, 200_000) == values["k4"]
        sizes = [[50_000, 100_000, 50_000]] * 2
        where = [[memory.address + 250_000 * n + at for at in (0, 50_000, 150_000)] for n in range(2)]
        assert store.batch_get_into_multi_buffers(["k5", "k6"], where, sizes) == [200_000] * 2
        assert memory.bytes(0, 200_000) == values["k5"] and memory.bytes(250_000, 200_000) == values["k6"]
        assert store.get_into_ranges([memory.address], [["k7"]], [[[0, 1000]]], [[[65_000, 199_000]]], [[[1000, 1000]]]) == [[[1000, 1000]]]
        assert memory.bytes(0, 2000) == values["k7"][65_000:66_000] + values["k7"][199_000:200_000]
        assert store.unregister_buffer(memory.address) == 0
    assert reader.get_offload_rpc_read_count() > 0
    assert reader.remove("k9", force=True) == 0
    assert node.get("k9") == b""
    assert node.close() == 0 and reader.close() == 0


def test_tensors_on_disk(disk_master, tmp_path):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(np.arange(100_000, dtype=np.float32).reshape(100, 1000))
    node = MooncakeDistributedStore()
    assert setup(node, disk_master, str(tmp_path)) == 0
    assert node.put_tensor("t", tensor) == 0
    assert eventually(lambda: any(r.is_local_disk_replica() for r in node.get_replica_desc("t")))
    assert node.close() == 0
    node = MooncakeDistributedStore()
    assert setup(node, disk_master, str(tmp_path)) == 0
    assert eventually(lambda: node.is_exist("t") == 1)
    assert torch.equal(node.get_tensor("t"), tensor)
    assert node.close() == 0
