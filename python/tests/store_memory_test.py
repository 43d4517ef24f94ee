# SPDX-License-Identifier: Apache-2.0
"""Values from and into memory named by its address, whole and in parts."""

import ctypes
import gc
import mmap

import numpy as np
import pytest

from mooncake.store import ReplicateConfig
from store_helpers import Memory, random_bytes


@pytest.fixture(params=["registered", "plain"])
def memory(request, store, memory):
    if request.param == "registered":
        assert store.register_buffer(memory.address, memory.size) == 0
    yield memory


@pytest.fixture
def registered(store, memory):
    store.register_buffer(memory.address, memory.size)  # once more is no harm
    return memory


def test_registration_has_its_codes(store):
    array = np.zeros(8192, np.uint8)
    address = array.ctypes.data
    assert store.register_buffer(0, 10) == store.register_buffer(address, 0) == store.unregister_buffer(0) == -600
    assert store.register_buffer(address, 8192) == 0
    assert store.unregister_buffer(address) == 0
    assert store.unregister_buffer(address) != 0


@pytest.mark.parametrize("length", [1, 4096, 1 << 20])
def test_value_goes_from_memory_to_memory(store, memory, length):
    value = random_bytes(length)
    assert store.put_from("k", memory.fill(value), length) == 0
    assert store.get_into("k", memory.address + (2 << 20), length + 10) == length
    assert memory.bytes(2 << 20, length + 10) == value + bytes(10)
    assert store.upsert_from("k", memory.fill(value[::-1]), length) == 0
    assert store.get("k") == value[::-1]


def test_single_calls_have_their_codes(store, memory):
    memory.fill(b"value")
    assert store.put_from("k", memory.address, 0) == 0 and store.is_exist("k") == 0
    assert store.put_from("k", 0, 5) == store.put_from("", memory.address, 5) == -600
    assert store.put_from("k", memory.address, 5) == 0
    assert store.get_into("k", memory.address + 100, 4) == -600
    assert memory.bytes(100, 8) == bytes(8)
    assert store.get_into("none", memory.address, 100) == -704
    assert store.get_into("k", 0, 100) == -600


@pytest.mark.parametrize("length", [100, 200_000])
def test_a_source_that_cannot_be_read_is_refused_and_takes_no_key(store, memory, length):
    hole = mmap.mmap(-1, length, prot=0)
    address = np.frombuffer(hole, np.uint8).ctypes.data
    for bad in (0x1000, address):
        assert store.put_from("k", bad, length) == store.upsert_from("k", bad, length) == -600
        assert store.put_from_with_metadata("k", bad, memory.address, length, 5) < 0
        assert store.batch_put_from(["good", "k"], [memory.fill(b"value"), bad], [5, length]) == [0, -600]
        assert store.batch_put_from_multi_buffers(["k"], [[memory.address, bad]], [[5, length]]) == [-600]
        assert store.is_exist("k") == 0
    assert store.put("k", b"value") == 0 and store.get("k") == store.get("good") == b"value"


@pytest.mark.parametrize("length", [100, 200_000])
@pytest.mark.parametrize("protection", [0, mmap.PROT_READ], ids=["no access", "read only"])
def test_a_destination_that_cannot_be_written_is_refused(store, memory, length, protection):
    value = random_bytes(length)
    assert store.put("k", value) == 0
    hole = mmap.mmap(-1, length, prot=protection)
    for bad in (0x1000, np.frombuffer(hole, np.uint8).ctypes.data):
        assert store.get_into("k", bad, length) == -600
        assert store.batch_get_into(["k", "k"], [bad, memory.address], [length] * 2) == [-600, length]
        assert store.batch_get_into_multi_buffers(["k"], [[memory.address, bad]], [[length - 1, 1]]) == [-600]
    assert memory.bytes(0, length) == value


@pytest.mark.parametrize("kind", [list, tuple, lambda values: np.array(values, np.uint64), lambda values: np.array(values, np.int64)],
                         ids=["list", "tuple", "uint64 array", "int64 array"])
def test_batches_take_any_sequence_and_keep_the_order(store, memory, kind):
    count, size = 40, 3000
    values = [random_bytes(size, i) for i in range(count)]
    keys = [f"k{i}" for i in range(count)]
    addresses = [memory.fill(value, i * size) for i, value in enumerate(values)]
    assert store.batch_put_from(keys, kind(addresses), kind([size] * count)) == [0] * count
    assert store.get_batch(keys) == values
    into = [memory.address + (1 << 20) + i * 4096 for i in range(count)]
    assert store.batch_get_into([*keys[1:], "none"], kind(into), kind([4096] * count)) == [size] * (count - 1) + [-704]
    assert [memory.bytes((1 << 20) + i * 4096, size) for i in range(count - 1)] == values[1:]


def test_lists_of_different_lengths_are_refused_for_all(store, memory):
    a = memory.address
    assert store.batch_put_from(["k", "l"], [a], [1, 1]) == store.batch_put_from(["k", "l"], [a, a], [1]) == [-600, -600]
    assert store.batch_get_into(["k", "l"], [a], [1, 1]) == [-600, -600]
    assert store.batch_put_from_multi_buffers(["k", "l"], [[a]], [[1], [1]]) == [-600, -600]
    assert store.batch_put_from_multi_buffers(["k"], [[a, a]], [[1]]) == [-600]
    assert store.batch_get_into_multi_buffers(["k"], [[a]], [[1, 1]]) == [-600]
    assert store.batch_is_exist(["k", "l"]) == [0, 0]


def test_one_bad_entry_does_not_hurt_the_others(store, memory):
    memory.fill(b"value")
    a = memory.address
    assert store.batch_put_from(["a", "b", "c", ""], [a, 0, a, a], [5, 5, 5, 5]) == [0, -600, 0, -600]
    assert store.batch_get_into(["a", "b", "c", "a"], [a, a, 0, a], [5, 5, 5, 1]) == [5, -704, -600, -600]


def test_existing_keys_are_no_failure_in_a_batch(store, memory):
    memory.fill(b"12")
    assert store.batch_put_from(["a"], [memory.address], [1]) == [0]
    assert store.batch_put_from(["a", "b"], [memory.address + 1, memory.address + 1], [1, 1]) == [0, 0]
    assert store.get_batch(["a", "b"]) == [b"1", b"2"]
    assert store.batch_upsert_from(["a"], [memory.address + 1], [1]) == [0]
    assert store.get("a") == b"2"


def test_several_buffers_make_up_a_value(store, memory):
    value = random_bytes(60_000)
    cuts = [0, 1, 5000, 5001, 40_000, 60_000]
    memory.fill(value)
    pointers = [memory.address + start for start in cuts[:-1]]
    sizes = [end - start for start, end in zip(cuts, cuts[1:])]
    assert store.batch_put_from_multi_buffers(["a", "b"], [pointers, pointers[:1]], [sizes, sizes[:1]]) == [0, 0]
    assert store.get_batch(["a", "b"]) == [value, value[:1]]
    base = memory.address + (1 << 20)
    into = [base, base + 100_000, base + 200_000]
    assert store.batch_get_into_multi_buffers(["a", "none"], [into, into], [[10, 59_000, 5000]] * 2) == [60_000, -704]
    assert memory.bytes(1 << 20, 10) == value[:10]
    assert memory.bytes((1 << 20) + 100_000, 59_000) == value[10:59_010]
    assert memory.bytes((1 << 20) + 200_000, 990) == value[59_010:]
    assert store.batch_get_into_multi_buffers(["a"], [into[:1]], [[59_999]], prefer_alloc_in_same_node=True) == [-600]


def test_same_node_is_for_several_buffers_and_one_replica(store, memory):
    memory.fill(b"ab")
    config = ReplicateConfig()
    config.prefer_alloc_in_same_node = True
    assert store.batch_put_from_multi_buffers(["a"], [[memory.address, memory.address + 1]], [[1, 1]], config) == [0]
    assert store.get("a") == b"ab"
    config.replica_num = 2
    assert store.batch_put_from_multi_buffers(["b"], [[memory.address]], [[1]], config) == [-600]


def test_groups_are_given_per_key(store, memory):
    memory.fill(b"ab")
    config = ReplicateConfig()
    config.group_ids = ["g", "g", ""]
    a = memory.address
    assert store.batch_put_from_multi_buffers(["a", "b", "c"], [[a]] * 3, [[1]] * 3, config) == [0, 0, 0]
    assert store.batch_put_from(["d"], [a], [1], config) == [-600]
    assert store.batch_is_exist(["a", "b", "c", "d"]) == [1, 1, 1, 0]


def test_metadata_goes_before_the_data(store, memory):
    memory.fill(b"dataMETA")
    a = memory.address
    assert store.put_from_with_metadata("k", a, a + 4, 4, 4) == 0
    assert store.get("k") == b"METAdata"
    assert store.put_from_with_metadata("none", 0, a, 4, 4) == -1
    assert store.put_from_with_metadata("none", a, a, 0, 4) == 0 and store.is_exist("none") == 0
    assert store.put_from_with_metadata("data", a, 0, 4, 0) == 0 and store.get("data") == b"data"


def test_memory_is_registered_until_it_was_unregistered_as_often(store):
    plain = Memory(1 << 20)
    a = plain.address
    assert store.put("k", b"v" * 100) == 0
    read = lambda: store.get_into_ranges([a], [["k"]], [[[8192]]], [[[0]]], [[[100]]])[0][0][0]
    for length in (plain.size, plain.size, 4096):
        assert store.register_buffer(a, length) == 0
    assert store.register_buffer(a + 4096, 4096) == 0  # hides nothing of what is around it
    assert [read(), store.unregister_buffer(a), read(), store.unregister_buffer(a), store.unregister_buffer(a + 4096), read()] == [100, 0, 100, 0, 0, 100]
    assert [store.unregister_buffer(a), read(), store.unregister_buffer(a)] == [0, -600, -600]


def test_memory_that_was_freed_while_registered_is_refused(store):
    gone = mmap.mmap(-1, 4 << 20)
    a = ctypes.addressof(ctypes.c_char.from_buffer(gone))
    assert store.register_buffer(a, 4 << 20) == 0
    gc.collect()
    gone.close()
    assert store.put("k", b"v" * 100) == 0
    assert (store.put_from("l", a, 100), store.batch_put_from(["l"], [a], [100]), store.get_into("k", a, 100)) == (-600, [-600], -600)
    assert (store.batch_get_into(["k"], [a], [100]), store.get_into_ranges([a], [["k"]], [[[0]]], [[[0]]], [[[1]]])) == ([-600], [[[-600]]])
    assert (store.get("k"), store.unregister_buffer(a)) == (b"v" * 100, 0)


# ---- parts of values


def test_ranges_come_in_the_shape_they_were_asked_for(store, registered):
    memory, first, second = registered, random_bytes(200_000, 1), random_bytes(1000, 2)
    assert store.put_batch(["a", "b"], [first, second]) == 0
    buffers = [memory.address, memory.address + (1 << 20)]
    keys = [["a", "none", "b"], ["b"]]
    to = [[[0, 1000], [0], []], [[5]]]
    start = [[[100, 190_000], [0], []], [[0]]]
    size = [[[500, 10_000], [1], []], [[1000]]]
    assert store.get_into_ranges(buffers, keys, to, start, size) == [[[500, 10_000], [-704], []], [[1000]]]
    assert memory.bytes(0, 500) == first[100:600] and memory.bytes(1000, 10_000) == first[190_000:]
    assert memory.bytes((1 << 20) + 5, 1000) == second


def test_ranges_that_do_not_fit_fail_alone(store, registered):
    memory = registered
    assert store.put("a", bytes(1000)) == 0
    assert store.get_into_ranges([memory.address], [["a", "a", "a"]], [[[0, memory.size - 5, 2**63], [0], [0]]],
                                 [[[990, 0, 0], [2**63], [0]]], [[[11, 6, 1], [1], [1000]]]) == [[[-600, -600, -600], [-600], [1000]]]


def test_ranges_of_the_wrong_shape_are_refused(store, registered):
    a = registered.address
    assert store.put("a", bytes(1000)) == 0
    assert store.get_into_ranges([a, a], [["a"]], [[[0]]], [[[0]]], [[[1]]]) == [[[-600]], [[-600]]]
    assert store.get_into_ranges([a], [["a", "a"]], [[[0, 1], [0]]], [[[0], [0]]], [[[1, 1], [1]]]) == [[[-600, -600], [1]]]
    assert store.get_into_ranges([a], [["a"]], [[[0], [0]]], [[[0]]], [[[1]]]) == [[[-600]]]
    assert store.get_into_ranges([a], [["a", "a"]], [[[0, 1]]], [[[0, 1]]], [[[1, 1]]]) == [[[-600, -600], [-600]]]
    assert store.get_into_ranges([a], [["a", "a"]], [], [[[0]]], [[[1]]]) == [[[-600], [-600]]]
    assert store.get_into_ranges([], [], [], [], []) == []


def test_ranges_need_registered_memory(store):
    array = np.zeros(4096, np.uint8)
    assert store.put("a", bytes(100)) == 0
    assert store.get_into_ranges([array.ctypes.data, 0], [["a"], ["a"]], [[[0]]] * 2, [[[0]]] * 2, [[[1]]] * 2) == [[[-600]], [[-600]]]


def test_read_session_gives_parts_until_it_ends(store, registered):
    memory, value = registered, random_bytes(300_000)
    assert store.put("a", value) == 0
    assert store.batch_get_session_start(["a", "none"]) == [0, -704]
    a = memory.address
    assert store.batch_get_into_multi_buffer_ranges(["a", "none"], [[a, a + 1000], [a]], [[1000, 5], [1]], [[7, 299_995], [0]]) == [1005, -600]
    assert memory.bytes(0, 1005) == value[7:1007] + value[-5:]
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[a]], [[6]], [[299_995]]) == [-600]
    assert store.batch_get_session_end(["a"]) == 0
    assert store.batch_get_session_end(["a"]) == 0  # once more does nothing
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[a]], [[1]], [[0]]) == [-600]


def test_write_session_fills_a_reserved_place(store, registered):
    memory, value = registered, random_bytes(200_000)
    a = memory.fill(value)
    assert store.put("there", b"v") == 0
    assert store.batch_put_session_start(["k", "there", "k2"], [200_000, 5, 10]) == [0, -705, 0]
    assert store.batch_put_session_start(["k"], [1]) == [-600]
    assert store.is_exist("k") == 0
    assert store.batch_put_from_multi_buffer_ranges(["k"], [[a + 100_000, a]], [[100_000, 60_000]], [[100_000, 0]]) == [160_000]
    assert store.batch_put_from_multi_buffer_ranges(["k"], [[a + 60_000]], [[40_000]], [[60_000]]) == [40_000]
    assert store.batch_put_from_multi_buffer_ranges(["k", "none"], [[a], [a]], [[2], [1]], [[199_999], [0]]) == [-600, -600]
    assert store.batch_put_session_end(["k", "none"])[0] == 0
    assert store.get("k") == value
    assert store.batch_put_session_revoke(["k2"]) == [0]
    assert store.is_exist("k2") == 0
    assert store.put("k2", b"again") == 0


def test_a_value_with_bytes_that_were_never_written_is_not_stored(store, registered):
    a = registered.fill(random_bytes(100))
    assert store.batch_put_session_start(["gap", "empty"], [100, 100]) == [0, 0]
    assert store.batch_put_from_multi_buffer_ranges(["gap"], [[a, a + 60]], [[50, 40]], [[0, 60]]) == [90]
    assert store.batch_put_session_end(["gap", "empty"]) == [-700, -700]
    assert store.batch_is_exist(["gap", "empty"]) == [0, 0]
    assert store.put("gap", b"whole") == 0


def test_session_calls_check_their_lists(store, registered):
    a = registered.address
    assert store.batch_put_session_start(["k", "l"], [1]) == [-600, -600]
    config = ReplicateConfig()
    config.group_ids = ["g"]
    assert store.batch_put_session_start(["k", "l"], [1, 1], config) == [-600, -600]
    assert store.batch_put_from_multi_buffer_ranges(["k"], [[a]], [[1]], [[0, 1]]) == [-600]
    assert store.batch_get_into_multi_buffer_ranges(["k"], [[a]], [[1]], []) == [-600]
