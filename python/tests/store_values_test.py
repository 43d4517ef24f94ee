# SPDX-License-Identifier: Apache-2.0
"""Whole values: what is put comes back, and every answer has its code."""

import array
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mooncake.store import ReplicateConfig, SoftPinAction
from store_helpers import MiB, random_bytes


@pytest.mark.parametrize("length", [1, 4096, 65536, 65537, 3 * MiB + 17])
def test_value_comes_back(store, length):
    value = random_bytes(length)
    assert store.put("k", value) == 0
    assert store.get("k") == value
    assert store.get_size("k") == length
    assert bytes(store.get_buffer("k")) == value


@pytest.mark.parametrize("value", [b"bytes", bytearray(b"array"), memoryview(b"view"), np.arange(10, dtype=np.int32), array.array("d", [1.5]),
                                   np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))], ids=lambda value: type(value).__name__)
def test_any_contiguous_memory_can_be_put(store, value):
    assert store.put("k", value) == 0
    assert store.get("k") == memoryview(value).tobytes("A")


def test_memory_with_gaps_is_refused(store):
    with pytest.raises((BufferError, ValueError)):
        store.put("k", np.zeros(10, np.uint8)[::2])


def test_put_keeps_a_value_that_is_there_and_upsert_replaces_it(store):
    assert store.put("k", b"first") == 0
    assert store.put("k", b"second value") == 0
    assert store.get("k") == b"first"
    assert store.upsert("k", b"third value") == 0
    assert store.get("k") == b"third value"
    assert store.upsert("new", b"x") == 0
    assert store.get("new") == b"x"


def test_a_value_whose_length_changes_all_the_time_is_never_missing(make_store):
    writer, reader = make_store(), make_store()
    values = [bytes([length % 251]) * length for length in range(1, 2000, 37)]
    assert writer.put("k", values[0]) == 0
    done = threading.Event()

    def replace():
        while not done.is_set():
            for value in values:
                assert writer.upsert("k", value) == 0

    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(replace)
        for _ in range(5000):
            if replacing.done() or reader.get("k") not in values or bytes(reader.get_buffer("k")) not in values:
                break
        else:
            done.set()
        found_all = done.is_set()
        done.set()
        replacing.result()
    assert found_all


def test_missing_keys_have_their_answers(store):
    assert store.get("none") == b""
    assert store.get_buffer("none") is None
    assert store.is_exist("none") == 0
    assert store.get_size("none") == -704
    assert store.remove("none") == -704


def test_empty_values_and_keys_are_refused(store):
    assert store.put("k", b"") == -600
    assert store.is_exist("k") == 0
    assert store.put("", b"v") == -600
    assert store.put_parts("k") == store.put_parts("k", b"", b"") == 0
    assert store.is_exist("k") == 0
    assert store.get("") == b""


@pytest.mark.parametrize("key", ["ü/ß key", "k" * 5000, "with\0nul", " "])
def test_any_text_can_be_a_key(store, key):
    assert store.put(key, b"v") == 0
    assert store.is_exist(key) == 1 and store.get(key) == b"v" and store.get(key.encode()) == b"v"
    assert store.batch_is_exist([key, "other"]) == [1, 0]


def test_parts_become_one_value(store):
    assert store.put_parts("k", b"ab", bytearray(b"cd"), memoryview(b"ef"), np.frombuffer(b"gh", np.uint8)) == 0
    assert store.get("k") == b"abcdefgh"
    assert store.upsert_parts("k", b"1", b"2", config=ReplicateConfig()) == 0
    assert store.get("k") == b"12"


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_batches_take_any_sequence_and_keep_the_order(store, kind):
    keys, values = [f"k{i}" for i in range(50)], [random_bytes(100 + i, i) for i in range(50)]
    assert store.put_batch(kind(keys), values) == 0
    assert store.get_batch(kind(keys)) == values
    assert store.batch_is_exist(kind([*keys, "none"])) == [1] * 50 + [0]
    assert [bytes(handle) for handle in store.batch_get_buffer(kind(keys))] == values


def test_batches_may_be_empty_and_have_holes(store):
    assert store.put_batch([], []) == 0
    assert store.get_batch([]) == store.batch_get_buffer([]) == store.batch_is_exist([]) == store.batch_remove([]) == []
    assert store.put("there", b"v") == 0
    assert store.get_batch(["none", "there", ""]) == [b"", b"v", b""]
    assert [handle and bytes(handle) for handle in store.batch_get_buffer(["none", "there"])] == [None, b"v"]


def test_put_batch_answers_the_first_failure(store):
    assert store.put_batch(["a", "b"], [b"1"]) == -600
    assert store.put_batch(["a", "", "c"], [b"1", b"2", b"3"]) == -600
    assert store.upsert_batch(["a", "c"], [b"4", b"5"]) == 0
    assert store.get_batch(["a", "c"]) == [b"4", b"5"]


def test_same_key_twice_in_a_batch_is_stored_once(store):
    assert store.put_batch(["k", "k"], [b"1", b"1"]) == 0
    assert store.get_batch(["k", "k"]) == [b"1", b"1"]


def test_handle_is_writable_memory_that_lives_on_its_own(store):
    assert store.put("k", b"hello") == 0
    handle = store.get_buffer("k")
    view = memoryview(handle)
    assert (view.ndim, view.itemsize, view.readonly, len(handle), handle.size()) == (1, 1, False, 5, 5)
    assert handle.ptr() == np.frombuffer(handle, np.uint8).ctypes.data
    np.frombuffer(handle, np.uint8)[0] = ord("j")
    assert bytes(handle) == b"jello" and store.get("k") == b"hello"
    assert np.frombuffer(handle, np.uint8, offset=3).tobytes() == b"lo"
    store.close()
    del view
    assert bytes(handle) == b"jello"


def test_full_staging_memory_means_no_handle_until_one_goes(make_store):
    store = make_store(buffer=MiB)
    assert store.put("k", random_bytes(700_000)) == 0
    first = store.get_buffer("k")
    assert first is not None and store.get_buffer("k") is None
    assert store.get("k") == bytes(first)  # needs none of it
    del first
    assert store.get_buffer("k") is not None


def test_store_without_staging_memory_takes_and_gives_no_objects(make_store, memory):
    store = make_store(buffer=0)
    assert store.put("k", b"v") != 0 and store.put_batch(["k"], [b"v"]) != 0 and store.put_parts("k", b"v") != 0
    assert store.is_exist("k") == 0 and store.get("k") == b"" and store.get_batch(["k", "l"]) == [b"", b""]
    memory.fill(b"value")
    assert store.register_buffer(memory.address, memory.size) == 0
    assert store.batch_put_from(["k"], [memory.address], [5]) == [0]
    assert store.batch_get_into(["k"], [memory.address + 100], [5]) == [5]
    assert memory.bytes(100, 5) == b"value"
    assert store.get_buffer("k") is None


# ---- removal


def test_remove_needs_force_while_somebody_may_read(store):
    assert store.put("k", b"v") == 0
    assert store.get("k") == b"v"  # takes a lease
    assert store.remove("k") == -706
    assert store.remove("k", force=True) == 0
    assert store.is_exist("k") == 0 and store.get("k") == b""
    assert store.remove("k", True) == -704


def test_remove_of_what_nobody_read_needs_no_force(store):
    assert store.put_batch(["a", "b"], [b"1", b"2"]) == 0
    assert store.batch_remove(["a", "none", "b"]) == [0, -704, 0]
    assert store.batch_is_exist(["a", "b"]) == [0, 0]


def test_remove_by_regex_searches_the_key(store):
    assert store.put_batch(["run1/a", "run1/b", "run2/a", "x"], [b"v"] * 4) == 0
    assert store.remove_by_regex("^run1/", force=True) == 2
    assert store.remove_by_regex("/a$", True) == 1
    assert store.remove_by_regex("(", True) == -600
    assert store.remove_by_regex("a" * 1000) == 0
    assert [store.remove_by_regex("a" * length) for length in (4097, 70_000)] == [-600, -600]  # not a master that does not answer
    assert store.batch_is_exist(["run1/a", "run1/b", "run2/a", "x"]) == [0, 0, 0, 1]


def test_remove_all_counts(store):
    assert store.put_batch([f"k{i}" for i in range(100)], [b"v"] * 100) == 0
    assert store.get("k7") == b"v"
    assert store.remove_all() == 99
    assert store.remove_all(force=True) == 1
    assert store.remove_all(True) == 0


# ---- configurations


def config(**fields) -> ReplicateConfig:
    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("bad", [
    config(prefer_alloc_in_same_node=True), config(replica_num=0), config(nof_replica_num=1), config(dfs_replica_num=1), config(soft_pin_ttl_ms=5),
    config(group_ids=["a", "b"]), config(group_ids=[]), config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=10**12)],
    ids=lambda bad: str(bad)[:60])
def test_configuration_that_makes_no_sense_is_refused(store, memory, bad):
    memory.fill(b"v")
    assert store.put("k", b"v", bad) == -600
    assert store.put("k", b"v", config=bad) == -600
    assert store.put_batch(["k"], [b"v"], bad) == -600
    assert store.put_parts("k", b"v", config=bad) == -600
    assert store.upsert("k", b"v", bad) == -600
    assert store.put_from("k", memory.address, 1, bad) == -600
    assert store.batch_put_from(["k"], [memory.address], [1], bad) == [-600]
    assert store.put_from_with_metadata("k", memory.address, memory.address, 1, 1, bad) < 0
    assert store.is_exist("k") == 0


@pytest.mark.parametrize("good", [
    None, config(with_hard_pin=True), config(with_soft_pin=True), config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=60_000),
    config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=0), config(group_ids=["g"]), config(group_ids=[""]), config(data_type=1),
    config(preferred_segment="nowhere:1"), config(preferred_segments=["nowhere:1"])], ids=lambda good: str(good)[:60])
def test_configuration_that_makes_sense_is_taken(store, good):
    assert store.put("k", b"v", good) == 0
    assert store.get("k") == b"v"


def test_preferred_segment_gets_the_value(make_store):
    first, second = make_store(), make_store()
    for name in (first.get_hostname(), second.get_hostname()):
        for form in (config(preferred_segment=name), config(preferred_segments=[name])):
            key = f"{name}/{bool(form.preferred_segment)}"
            assert first.put(key, b"v", form) == 0
            (replica,) = first.get_replica_desc(key)
            assert replica.get_memory_descriptor().buffer_descriptor.transport_endpoint == name


def test_replicas_are_in_different_segments(make_store):
    stores = [make_store() for _ in range(3)]
    assert stores[0].put("k", random_bytes(100_000), config(replica_num=2)) == 0
    replicas = stores[1].get_replica_desc("k")
    assert len({replica.get_memory_descriptor().buffer_descriptor.transport_endpoint for replica in replicas}) == 2
    assert all(one.get("k") == random_bytes(100_000) for one in stores)


def test_no_space_is_minus_200(make_store):
    store = make_store(segment=16 * MiB)
    pinned = config(with_hard_pin=True)
    codes = [store.put(f"k{i}", bytes(MiB), pinned) for i in range(20)]
    assert set(codes) == {0, -200} and codes[-1] == -200
    assert store.put("too long", bytes(17 * MiB)) == -200


# ---- life


def test_pool_is_shared_and_owners_take_their_values_along(make_store):
    owner, reader = make_store(), make_store(segment=0)
    assert owner.put("k", b"value") == 0
    assert reader.get("k") == b"value"
    assert reader.put("from reader", b"x") == 0
    assert owner.get("from reader") == b"x"
    assert owner.close() == 0
    assert reader.get("k") == b""
    assert reader.put("k", b"v") == -200  # nobody lends memory any more


def test_store_can_be_set_up_again_and_begins_empty(master, make_store):
    store = make_store()
    assert store.put("k", b"v") == 0
    assert store.close() == store.close() == 0
    assert store.health_check() == 1 and store.put("k", b"v") == -600 and store.get("k") == b""
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MiB, 16 * MiB, "tcp", "", master.address) == 0
    assert store.health_check() == 0
    assert store.get("k") == b""
    assert store.put("k", b"w") == 0 and store.get("k") == b"w"


def test_second_setup_leaves_the_pool_and_joins_anew(master, store):
    assert store.put("k", b"v") == 0
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MiB, 16 * MiB, "tcp", "", master.address) == 0
    assert store.get("k") == b""
    assert (store.put("k", b"w"), store.get("k"), store.health_check()) == (0, b"w", 0)


def test_an_empty_key_is_nowhere(store):
    assert store.put("", b"v") == store.upsert("", b"v") == -600
    assert (store.is_exist(""), store.batch_is_exist([""]), store.get_size(""), store.get("")) == (0, [0], -704, b"")
    assert (store.remove(""), store.batch_remove([""], True), store.get_replica_desc("")) == (-704, [-704], [])
    assert store.create_copy_task("", [store.get_hostname()]) == ((0, 0), -704)


@pytest.mark.parametrize("yes, no", [(True, False), (1, 0), (2.5, 0.0), (np.True_, np.False_)])
def test_flags_may_be_anything_that_is_true_or_not(store, yes, no):
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    assert store.remove("k", no) == -706 and store.remove("k", force=yes) == 0
    assert store.batch_remove(["k"], yes) == [-704] and store.remove_by_regex("x", no) == store.remove_all(yes) == 0
    config = ReplicateConfig()
    config.with_hard_pin = config.prefer_alloc_in_same_node = yes
    assert config.with_hard_pin is config.prefer_alloc_in_same_node is True
    config.with_hard_pin = no
    assert config.with_hard_pin is False
    for bad in ("yes", [1]):
        with pytest.raises(TypeError):
            store.remove("k", bad)
        with pytest.raises(TypeError):
            config.with_hard_pin = bad


def test_setup_by_dict_takes_both_spellings(master):
    from mooncake.store import MooncakeDistributedStore

    for names in ({"master_server_addr": master.address, "rdma_devices": ""}, {"master_server_address": master.address, "device_name": ""}):
        with MooncakeDistributedStore() as store:
            assert store.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "16 MB",
                                "local_buffer_size": "16mb", "protocol": "TCP", "storage_root_dir": "/nowhere", **names}) == 0
            assert store.put("k", b"v") == 0 and store.get("k") == b"v"


def test_setup_without_a_master_fails_with_a_code_and_can_be_repeated(master):
    import socket

    from mooncake.store import MooncakeDistributedStore

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, MiB, "tcp", "", f"127.0.0.1:{taken.getsockname()[1]}") < 0
    assert store.health_check() == 1
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, MiB, "tcp", "", master.address) == 0
    assert store.close() == 0


def test_hostname_is_the_name_of_the_segment(make_store):
    store = make_store()
    host, port = store.get_hostname().split(":")
    assert host == "127.0.0.1" and 0 < int(port) < 65536


def test_engine_may_be_shared(master, memory):
    from mooncake.engine import TransferEngine
    from mooncake.store import MooncakeDistributedStore

    for given in (lambda engine: engine.get_engine(), lambda engine: engine):
        engine = TransferEngine()
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert engine.register_memory(memory.address, memory.size) == 0
        store = MooncakeDistributedStore()
        name = f"127.0.0.1:{engine.get_rpc_port()}"
        assert store.setup(name, "P2PHANDSHAKE", 16 * MiB, 16 * MiB, "tcp", "", master.address, given(engine)) == 0
        assert store.put("k", b"v") == 0 and store.get("k") == b"v"
        assert store.close() == 0
        assert engine.get_rpc_port() > 0  # is left open
        assert engine.unregister_memory(memory.address) == 0
        engine.close()


def test_metrics_are_prometheus_text(store):
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    assert "# TYPE" in store.get_metrics()
