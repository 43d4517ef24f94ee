# SPDX-License-Identifier: Apache-2.0
"""Transfers that block: single, in batches, to oneself and to another process over every path."""

import threading

import numpy as np
import pytest

from mooncake.engine import TransferNotify, TransferOpcode

READ, WRITE = TransferOpcode.Read, TransferOpcode.Write
KiB = 1 << 10


def spread(base: int, count: int, stride: int) -> list[int]:
    return [base + i * stride for i in range(count)]


# ---- between two processes, over each path


@pytest.mark.parametrize("length", [1, 100, 4096, 1 << 20])
def test_written_bytes_arrive_and_can_be_read_back(pair, pattern, length):
    data = pattern(length, length)
    pair.local.memory[:length] = data
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, length) == 0
    assert pair.peer.read(0, length) == data.tobytes()
    pair.local.memory[:length] = 0
    assert pair.engine.transfer_sync_read(pair.peer.name, pair.local.address, pair.peer.address, length) == 0
    assert pair.local.memory[:length].tobytes() == data.tobytes()


@pytest.mark.parametrize("opcode", [WRITE, 1])
def test_scattered_batch_arrives(pair, pattern, opcode):
    pair.local.memory[:] = pattern(pair.local.memory.size)
    local = spread(pair.local.address, 128, 8 * KiB)
    remote = spread(pair.peer.address, 128, 4 * KiB)[::-1]
    lengths = [1 + 31 * i for i in range(128)]
    assert pair.engine.batch_transfer_sync(pair.peer.name, local, remote, lengths, opcode) == 0
    assert pair.engine.batch_transfer_sync_write(pair.peer.name, local, remote, lengths) == 0
    arrived = pair.peer.read(0, pair.peer.size)
    for i, length in enumerate(lengths):
        start = (127 - i) * 4 * KiB
        assert arrived[start:start + length] == pair.local.memory[i * 8 * KiB:i * 8 * KiB + length].tobytes()


def test_batch_read_fetches_each_block_to_its_place(pair, pattern):
    data = pattern(pair.peer.size).tobytes()
    pair.peer.write(0, data)
    local = spread(pair.local.address, 64, 4 * KiB)
    remote = spread(pair.peer.address + 5, 64, 8 * KiB)
    assert pair.engine.batch_transfer_sync_read(pair.peer.name, local, remote, [1000] * 64) == 0
    for i in range(64):
        assert pair.local.memory[i * 4 * KiB:i * 4 * KiB + 1000].tobytes() == data[5 + i * 8 * KiB:5 + i * 8 * KiB + 1000]


def test_address_the_peer_did_not_register_is_refused(pair):
    before = pair.peer.read(0, 4096)
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address - 16, 16) == -1
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address - 8, 16) == -1
    assert pair.engine.transfer_sync_read(pair.peer.name, pair.local.address, 4096, 16) == -1
    assert pair.peer.name in pair.engine.last_error()
    assert pair.peer.read(0, 4096) == before
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 16) == 0


def test_memory_the_peer_took_back_is_refused(pair):
    if pair.peer.ask("unregister") != 0:
        pytest.skip("managed memory is given back with free_managed_buffer")
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 16) == -1


def test_peer_may_be_the_initiator_as_well(pair, pattern):
    data = pattern(5000).tobytes()
    pair.peer.write(100, data)
    assert pair.peer.ask("push", target=pair.local.name, offset=100, peer_address=pair.local.address + 7, length=5000) == 0
    assert pair.local.memory[7:5007].tobytes() == data


def test_local_memory_needs_no_registration(pair, pattern):
    loose = pattern(50_000)
    assert pair.engine.transfer_sync_write(pair.peer.name, loose.ctypes.data, pair.peer.address, loose.size) == 0
    assert pair.peer.read(0, loose.size) == loose.tobytes()


def test_notification_arrives_with_the_data(pair):
    pair.local.memory[:4] = 42
    arguments = (pair.peer.name, pair.local.address, pair.peer.address, 4, WRITE)
    assert pair.engine.transfer_sync(*arguments, TransferNotify("first", "one")) == 0
    assert pair.engine.transfer_sync(*arguments, notify=TransferNotify("second", "zwei ü \0 x")) == 0
    assert pair.engine.batch_transfer_sync(pair.peer.name, [pair.local.address], [pair.peer.address], [4], READ, TransferNotify("third", "")) == 0
    assert pair.peer.ask("notifies") == [["first", "one"], ["second", "zwei ü \0 x"], ["third", ""]]
    assert pair.peer.ask("notifies") == []


def test_a_notification_that_is_lost_fails_the_call(pair):
    arguments = (pair.peer.name, pair.local.address, pair.peer.address, 4, WRITE)
    assert pair.engine.transfer_sync(*arguments, notify=TransferNotify("long", "x" * 2_000_000)) == -1
    assert "notification" in pair.engine.last_error()
    # As many as the peer keeps for a program that takes none.
    million = TransferNotify("n", "x" * 1_000_000)
    codes = [pair.engine.transfer_sync(*arguments, notify=million) for _ in range(80)]
    arrived = codes.index(-1)
    assert codes == [0] * arrived + [-1] * (80 - arrived)
    assert "the bytes are there, the notification is not" in pair.engine.last_error()
    assert len(pair.peer.ask("notifies")) == arrived
    assert pair.engine.transfer_sync(*arguments, notify=million) == 0
    assert len(pair.peer.ask("notifies")) == 1


def test_first_buffer_of_the_peer_is_found(pair):
    assert pair.engine.get_first_buffer_address(pair.peer.name) <= pair.peer.address
    assert pair.engine.get_first_buffer_address(pair.peer.name) != 0


# ---- to oneself


def test_own_name_works(local):
    local.memory[:100] = 5
    assert local.engine.transfer_sync_write(local.name, local.address, local.address + 4096, 100) == 0
    assert local.memory[4096:4196].tolist() == [5] * 100
    assert local.engine.get_first_buffer_address(local.name) == local.address
    assert local.engine.send_probe(local.name) == 0
    assert local.engine.warmup_efa_segment(local.name) == 0


def test_notification_to_oneself(local):
    assert local.engine.get_notifies() == []
    arguments = (local.name, local.address, local.address + 4096, 4, WRITE, TransferNotify("n", "m"))
    assert local.engine.transfer_sync(*arguments) == 0
    assert [(n.name, n.msg) for n in local.engine.get_notifies()] == [("n", "m")]
    assert local.engine.get_notifies() == []


def test_zero_length_moves_nothing_and_succeeds(local):
    assert local.engine.transfer_sync_write(local.name, local.address, local.address, 0) == 0
    assert local.engine.batch_transfer_sync_read(local.name, [local.address] * 3, [local.address + 4096] * 3, [0, 0, 0]) == 0


def test_empty_lists_succeed_even_without_a_peer(local):
    assert local.engine.batch_transfer_sync_write("127.0.0.1:1", [], [], []) == 0
    assert local.engine.batch_transfer_sync_read("127.0.0.1:1", (), (), np.array([], np.int64)) == 0


@pytest.mark.parametrize("lists", [([1], [1, 1], [1]), ([1, 1], [1, 1], [1]), ([], [1], [1]), ([1], [], []), ([1], [1], [])])
def test_lists_of_different_lengths_are_refused(local, lists):
    assert local.engine.batch_transfer_sync_write(local.name, *lists) == -1
    assert local.engine.batch_transfer_sync_read(local.name, *lists) == -1
    assert "equally long" in local.engine.last_error()


def test_transport_hint_is_accepted_and_checked(local):
    assert local.engine.transfer_sync_write(local.name, local.address, local.address + 64, 8, "rdma") == 0
    assert local.engine.batch_transfer_sync_write(local.name, [local.address], [local.address + 64], [8], transport_hint="whatever") == 0
    with pytest.raises(TypeError):
        local.engine.transfer_sync_write(local.name, local.address, local.address + 64, 8, 1)


def test_keyword_forms(local):
    assert local.engine.transfer_sync_write(target_hostname=local.name, buffer=local.address, peer_buffer_address=local.address + 64, length=8) == 0
    assert local.engine.batch_transfer_sync_write(target_hostname=local.name, buffers=[local.address],
                                                  peer_buffer_addresses=[local.address + 64], lengths=[8], transport_hint="") == 0


# ---- what may stand in the lists


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("form", [
    list,
    tuple,
    lambda values: np.array(values, np.int64),
    lambda values: np.array(values, np.uint64),
    lambda values: np.array(values, np.uint64)[::1],
    lambda values: np.repeat(np.array(values, np.uint64), 2)[::2],  # not contiguous
    lambda values: [np.uint64(v) for v in values],
    lambda values: [np.array(v) for v in values],  # arrays without dimensions
    lambda values: [Index(v) for v in values],
    lambda values: memoryview(np.array(values, np.uint64)),
    lambda values: np.array(values, ">u8"),
])
def test_any_sequence_of_integers_will_do(local, pattern, form):
    local.memory[:40_000] = pattern(40_000)
    source, target = spread(local.address, 10, 4096), spread(local.address + (1 << 19), 10, 5000)
    assert local.engine.batch_transfer_sync_write(local.name, form(source), form(target), form([1000 + i for i in range(10)])) == 0
    for i in range(10):
        start = (1 << 19) + i * 5000
        assert np.array_equal(local.memory[start:start + 1000 + i], local.memory[i * 4096:i * 4096 + 1000 + i])


@pytest.mark.parametrize("wrong", [
    1, 1.0, "ab", b"ab", bytearray(b"ab"), {1}, {1: 1}, (x for x in [1]), [None], [1.0], ["1"], [-1], [2**64], [[1]], [np.float32(1)],
    np.array([-1]), np.array([1.0]), np.array(["1"]), np.array(1), object(),
])
@pytest.mark.parametrize("place", range(3))
def test_anything_else_in_the_lists_is_a_type_error(local, wrong, place):
    lists = [[local.address], [local.address], [1]]
    lists[place] = wrong
    with pytest.raises(TypeError):
        local.engine.batch_transfer_sync_write(local.name, *lists)


@pytest.mark.parametrize("place", range(2))
def test_none_is_no_list_of_addresses(local, place):
    lists = [[local.address], [local.address], [1]]
    lists[place] = None
    with pytest.raises(TypeError):
        local.engine.batch_transfer_sync_write(local.name, *lists)


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (2**64, 1, 1), (1, 1.0, 1), ("a", 1, 1), (1, None, 1), (1, 1, None), (1, 1)])
def test_wrong_single_arguments_are_type_errors(local, arguments):
    with pytest.raises(TypeError):
        local.engine.transfer_sync_write(local.name, *arguments)
    with pytest.raises(TypeError):
        local.engine.transfer_sync_read(local.name, *arguments)


@pytest.mark.parametrize("target", [1, None, b"127.0.0.1:1"])
def test_target_that_is_no_text_is_a_type_error(local, target):
    with pytest.raises(TypeError):
        local.engine.transfer_sync_write(target, local.address, local.address, 1)


@pytest.mark.parametrize("target", ["", "nonsense", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", ":", "a\0b:1", "x" * 10_000, "[::1:5"])
def test_target_that_is_no_address_is_refused(local, target):
    assert local.engine.transfer_sync_write(target, local.address, local.address, 1) == -1
    assert local.engine.get_first_buffer_address(target) == 0
    assert local.engine.send_probe(target) < 0


@pytest.mark.parametrize("opcode, error", [(2, ValueError), (-1, TypeError), ("write", TypeError), (None, TypeError)])
def test_wrong_opcode(local, opcode, error):
    with pytest.raises(error):
        local.engine.transfer_sync(local.name, local.address, local.address, 1, opcode)
    with pytest.raises(error):
        local.engine.batch_transfer_sync(local.name, [local.address], [local.address], [1], opcode)


def test_list_that_shrinks_while_it_is_read(local):
    victims = []

    class Shrinker:
        def __index__(self):
            victims.clear()
            return local.address

    victims += [Shrinker(), local.address]
    with pytest.raises(ValueError):
        local.engine.batch_transfer_sync_write(local.name, victims, [local.address] * 2, [1, 1])


def test_element_that_transfers_by_itself(local):
    class Nested:
        def __index__(self):
            assert local.engine.batch_transfer_sync_write(local.name, [local.address] * 50, [local.address + 64] * 50, [8] * 50) == 0
            return local.address + 128

    local.memory[:8] = 3
    assert local.engine.batch_transfer_sync_write(local.name, [local.address] * 3, [local.address + 32, Nested(), local.address + 256], [8] * 3) == 0
    assert local.memory[[0, 32, 64, 128, 256]].tolist() == [3] * 5


def test_exception_inside_an_element_comes_through(local):
    class Broken:
        def __index__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        local.engine.batch_transfer_sync_write(local.name, [local.address], [Broken()], [1])


# ---- objects instead of addresses


def test_objects_bring_address_and_length(local, pattern):
    data = pattern(3000)
    assert local.engine.transfer_sync_write(local.name, data, local.address) == 0
    assert local.engine.transfer_sync_write(local.name, bytes(data), local.address + 4096, 100) == 0
    assert np.array_equal(local.memory[:3000], data) and np.array_equal(local.memory[4096:4196], data[:100])
    into = bytearray(3000)
    assert local.engine.transfer_sync_read(local.name, into, local.address) == 0
    assert into == data.tobytes()


def test_objects_in_batches_mix_with_addresses(local, pattern):
    parts = [pattern(1000, seed) for seed in range(3)]
    assert local.engine.batch_transfer_sync_write(local.name, parts, spread(local.address, 3, 1000)) == 0
    assert local.memory[:3000].tobytes() == b"".join(p.tobytes() for p in parts)
    assert local.engine.batch_transfer_sync_write(local.name, [parts[0], local.address + 1000], spread(local.address + 8192, 2, 1000), [1000, 1000]) == 0
    assert np.array_equal(local.memory[8192:10192], local.memory[:2000])


def test_object_rules(local):
    with pytest.raises(BufferError):
        local.engine.transfer_sync_read(local.name, b"read-only", local.address)
    with pytest.raises(BufferError):
        local.engine.batch_transfer_sync_read(local.name, [b"read-only"], [local.address])
    with pytest.raises(ValueError):
        local.engine.transfer_sync_write(local.name, b"short", local.address, 6)
    with pytest.raises(ValueError):
        local.engine.batch_transfer_sync_write(local.name, [b"short"], [local.address], [6])
    with pytest.raises(TypeError, match="lengths"):
        local.engine.batch_transfer_sync_write(local.name, [b"a", local.address], [local.address] * 2)
    with pytest.raises((BufferError, ValueError)):
        local.engine.transfer_sync_write(local.name, np.zeros(100, np.uint8)[::2], local.address)


# ---- many


def test_a_million_entries_in_one_batch(pair, pattern):
    count = 1_000_000
    pair.local.memory[:count] = pattern(count)
    local, remote = pair.local.address, pair.peer.address
    assert pair.engine.batch_transfer_sync_write(pair.peer.name, [local + i for i in range(count)],
                                                 [remote + (i ^ 1) for i in range(count)], [1] * count) == 0
    swapped = pair.local.memory[:count].reshape(-1, 2)[:, ::-1]
    assert pair.peer.read(0, count) == swapped.tobytes()


def test_eight_threads_transfer_at_once(pair, pattern):
    piece = 100 * KiB
    pair.local.memory[:8 * piece] = pattern(8 * piece)
    codes = []

    def work(index):
        start = index * piece
        blocks = spread(start, 100, KiB)
        for _ in range(20):
            codes.append(pair.engine.batch_transfer_sync_write(
                pair.peer.name, [pair.local.address + b for b in blocks], [pair.peer.address + b for b in blocks], [KiB] * 100))
            codes.append(pair.engine.transfer_sync_read(pair.peer.name, pair.local.address + start, pair.peer.address + start, 100))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 320
    assert pair.peer.read(0, 8 * piece) == pair.local.memory[:8 * piece].tobytes()


def test_interpreter_runs_while_a_transfer_blocks(stalling_pair):
    """The lock is given up: this thread goes on although another one waits inside a call."""
    pair = stalling_pair
    assert pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 16) == 0
    pair.peer.pause()
    codes = []
    thread = threading.Thread(target=lambda: codes.append(
        pair.engine.transfer_sync_write(pair.peer.name, pair.local.address, pair.peer.address, 8 << 20)))
    thread.start()
    total = sum(range(100_000))
    assert total and not codes
    pair.peer.resume()
    thread.join()
    assert codes == [0]
