# SPDX-License-Identifier: Apache-2.0
"""Registration, managed buffers and the byte helpers, with the return codes callers compare with."""

import threading

import numpy as np
import pytest

from mooncake.engine import TransferEngine

KiB, MiB = 1 << 10, 1 << 20


@pytest.fixture
def engine(local) -> TransferEngine:
    return local.engine


@pytest.fixture
def block() -> np.ndarray:
    return np.zeros(64 * KiB, np.uint8)


# ---- registration


def test_register_and_unregister(engine, block):
    assert engine.register_memory(block.ctypes.data, block.size) == 0
    assert engine.unregister_memory(block.ctypes.data) == 0
    assert engine.unregister_memory(block.ctypes.data) == -3


def test_register_by_keyword_and_location(engine, block):
    assert engine.register_memory(buffer_addr=block.ctypes.data, capacity=block.size, location="cpu:0") == 0


@pytest.mark.parametrize("address, length", [(0, 4096), (4096, 0), (0, 0)])
def test_nothing_cannot_be_registered(engine, address, length):
    assert engine.register_memory(address, length) == -1


def test_range_beyond_the_address_space_is_refused(engine):
    assert engine.register_memory(2**64 - 4096, 8192) < 0


def test_crossing_a_registered_border_is_an_overlap(engine, block):
    start = block.ctypes.data
    assert engine.register_memory(start + 4096, 4096) == 0
    assert engine.register_memory(start, 8192) == -7
    assert engine.register_memory(start + 6000, 8192) == -7
    assert engine.register_memory(start, 4096) == 0, "touching is not overlapping"


def test_duplicates_and_parts_are_counted(engine, block):
    start = block.ctypes.data
    assert engine.register_memory(start, block.size) == 0
    assert engine.register_memory(start, block.size) == 0
    assert engine.unregister_memory(start) == 0
    assert engine.unregister_memory(start) == 0
    assert engine.unregister_memory(start) == -3


@pytest.mark.parametrize("arguments", [(-1, 1), (1, -1), (2**64, 1), (1, 2**64), (1.0, 1), ("1", 1), (None, 1), (1, None), (1, 1, 1), ([1], 1)])
def test_wrong_arguments_are_type_errors(engine, arguments):
    with pytest.raises(TypeError):
        engine.register_memory(*arguments)


def test_numpy_integers_are_addresses(engine, block):
    assert engine.register_memory(np.uint64(block.ctypes.data), np.int32(block.size)) == 0
    assert engine.unregister_memory(np.int64(block.ctypes.data)) == 0


def test_batch_is_all_or_nothing(engine, block):
    start = block.ctypes.data
    assert engine.batch_register_memory([start, start + 8192, start + 4096], [4096, 4096, 8192]) == -7
    assert engine.unregister_memory(start) == -3
    assert engine.batch_register_memory([start, start + 8192], [4096, 4096]) == 0
    assert engine.batch_unregister_memory([start, start + 8192]) == 0


def test_batch_lists_must_be_equally_long(engine, block):
    assert engine.batch_register_memory([block.ctypes.data], []) == -1
    assert engine.batch_register_memory([], [4096]) == -1
    assert engine.batch_register_memory([], []) == 0


def test_batch_unregister_goes_on_after_a_failure(engine, block):
    start = block.ctypes.data
    assert engine.batch_register_memory([start, start + 8192], [4096, 4096]) == 0
    assert engine.batch_unregister_memory([start, 12345, start + 8192]) == -3
    assert engine.unregister_memory(start + 8192) == -3
    assert engine.batch_unregister_memory([]) == 0


def test_batch_takes_arrays_of_addresses(engine, block):
    addresses = np.arange(4, dtype=np.int64) * 8192 + block.ctypes.data
    assert engine.batch_register_memory(addresses, np.full(4, 4096, np.uint64), location="*") == 0
    assert engine.batch_unregister_memory(addresses.astype(np.uint64)) == 0


def test_registration_runs_in_many_threads(engine):
    blocks = [np.zeros(16 * KiB, np.uint8) for _ in range(8)]
    codes = []

    def work(block):
        for _ in range(200):
            codes.append(engine.register_memory(block.ctypes.data, block.size))
            codes.append(engine.unregister_memory(block.ctypes.data))

    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 3200


# ---- objects instead of addresses


@pytest.mark.parametrize("make", [
    bytearray,
    lambda n: memoryview(bytearray(n)),
    lambda n: np.zeros(n // 4, np.float32),
    lambda n: np.zeros((n // 64, 64), np.uint8, order="F"),
    lambda n: bytes(n),
])
def test_object_brings_its_length(engine, make):
    thing = make(8192)
    assert engine.register_memory(thing) == 0
    assert engine.unregister_memory(thing) == 0
    assert engine.unregister_memory(thing) == -3


class DLPackOnly:
    """As a tensor that knows no buffer protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_object_is_memory(local):
    source = DLPackOnly(np.arange(1000, dtype=np.int32))
    assert local.engine.register_memory(source) == 0
    assert local.engine.transfer_sync_write(local.name, source, local.address) == 0
    assert local.memory[:4000].tobytes() == source.array.tobytes()
    assert local.engine.unregister_memory(source) == 0


def test_object_stays_where_it_is_while_registered(engine):
    buffer = bytearray(4096)
    assert engine.register_memory(buffer) == 0
    with pytest.raises(BufferError):
        buffer.append(1)
    assert engine.unregister_memory(buffer) == 0
    buffer.append(1)


def test_object_is_let_go_on_close_and_by_batch(local):
    buffers = [bytearray(4096), bytearray(4096)]
    assert local.engine.batch_register_memory(buffers) == 0
    assert local.engine.batch_unregister_memory([buffers[0]]) == 0
    buffers[0].append(1)
    local.engine.close()
    buffers[1].append(1)


def test_object_shorter_than_the_capacity_is_a_value_error(engine):
    with pytest.raises(ValueError, match="capacity"):
        engine.register_memory(bytearray(10), 11)
    with pytest.raises(ValueError, match=r"capacities\[1\]"):
        engine.batch_register_memory([bytearray(10), bytearray(10)], [10, 11])


def test_strided_object_is_refused(engine):
    with pytest.raises((BufferError, ValueError)):
        engine.register_memory(np.zeros(100, np.uint8)[::2])


# ---- managed buffers


@pytest.mark.parametrize("length", [1, 8 * KiB, 8 * KiB + 1, 300_000, 256 * MiB, 256 * MiB + 1])
def test_managed_buffer_holds_what_was_asked_for(engine, length):
    address = engine.allocate_managed_buffer(length)
    assert address != 0
    assert engine.write_bytes_to_buffer(address + length - 1, b"x") == 0
    assert engine.read_bytes_from_buffer(address + length - 1, 1) == b"x"
    assert engine.free_managed_buffer(address, length) == 0
    assert engine.free_managed_buffer(address, length) == -3


def test_managed_buffers_do_not_overlap(engine):
    ranges = sorted((engine.allocate_managed_buffer(n), n) for n in [1, 10_000, 100_000, 8192, 70_000, 1] * 20)
    assert all(a + n <= b for (a, n), (b, _) in zip(ranges, ranges[1:]))
    for address, length in ranges:
        assert engine.free_managed_buffer(address, length) == 0


def test_managed_buffer_is_registered(local):
    address = local.engine.allocate_managed_buffer(4096)
    local.memory[:100] = 9
    assert local.engine.transfer_sync_write(local.name, local.address, address, 100) == 0
    assert local.engine.read_bytes_from_buffer(address, 100) == b"\x09" * 100


def test_freeing_nonsense_is_refused(engine):
    address = engine.allocate_managed_buffer(100_000)
    assert engine.free_managed_buffer(address + 8192, 8192) == -3
    assert engine.free_managed_buffer(address, 8192) == -1
    assert engine.free_managed_buffer(address, 0) == -1
    assert engine.free_managed_buffer(0, 8192) == -3
    assert engine.free_managed_buffer(address, 100_000) == 0


def test_no_buffer_of_no_bytes_or_more_than_there_can_be(engine):
    assert engine.allocate_managed_buffer(0) == 0
    assert engine.allocate_managed_buffer(2**64 - 1) == 0
    assert engine.allocate_managed_buffer(2**60) == 0
    with pytest.raises(TypeError):
        engine.allocate_managed_buffer(-1)


# ---- bytes


@pytest.mark.parametrize("source, length, expected", [
    (b"a\0b", 3, b"a\0b"),
    (b"abc", 2, b"ab"),
    ("text", 4, b"text"),
    ("ü", 2, "ü".encode()),
    (bytearray(b"xyz"), None, b"xyz"),
    (b"", 0, b""),
])
def test_bytes_there_and_back(local, source, length, expected):
    assert local.engine.write_bytes_to_buffer(local.address, source, length) == 0
    assert local.engine.read_bytes_from_buffer(local.address, len(expected)) == expected


def test_large_copies_are_whole(local, pattern):
    data = pattern(MiB).tobytes()
    assert local.engine.write_bytes_to_buffer(local.address, data, len(data)) == 0
    assert local.engine.read_bytes_from_buffer(local.address, len(data)) == data


def test_longer_than_the_source_is_a_value_error(local):
    with pytest.raises(ValueError, match="length"):
        local.engine.write_bytes_to_buffer(local.address, b"abc", 4)


def test_addresses_without_memory_are_errors_not_crashes(engine):
    assert engine.write_bytes_to_buffer(4096, b"abc", 3) == -1
    assert "4096" in engine.last_error() or "0x1000" in engine.last_error()
    with pytest.raises(ValueError):
        engine.read_bytes_from_buffer(4096, 3)
    with pytest.raises((ValueError, MemoryError)):
        engine.read_bytes_from_buffer(4096, 2**63)


@pytest.mark.parametrize("arguments", [("a", b"a", 1), (1, 1, 1), (1, None, 1), (1, b"a", "1"), (-1, b"a", 1)])
def test_wrong_types_for_bytes_are_type_errors(engine, arguments):
    with pytest.raises(TypeError):
        engine.write_bytes_to_buffer(*arguments)
