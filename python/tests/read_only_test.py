# SPDX-License-Identifier: Apache-2.0
"""Memory that must not be written: peers read it, and their writes are refused. Memory that is not there is not registered at all."""

import ctypes
import mmap

import numpy as np
import pytest

SIZE = 256 << 10
CONTENT = bytes(range(256)) * (SIZE // 256)


def mapped_file(tmp_path) -> mmap.mmap:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def read_only_array(_) -> np.ndarray:
    array = np.frombuffer(bytearray(CONTENT), np.uint8)
    array.flags.writeable = False
    return array


OBJECTS = {
    "bytes": lambda _: bytes(bytearray(CONTENT)),
    "memoryview": lambda _: memoryview(bytearray(CONTENT)).toreadonly(),
    "array": read_only_array,
    "mapping": mapped_file,
}


def address_of(memory) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("kind", OBJECTS)
def test_peers_read_it_but_do_not_write_it(pair, kind, batch, tmp_path):
    memory = OBJECTS[kind](tmp_path)
    code = pair.engine.batch_register_memory([memory]) if batch else pair.engine.register_memory(memory)
    assert code == 0, pair.engine.last_error()
    address, name = address_of(memory), pair.local.name
    for length in (64, SIZE):
        assert pair.peer.ask("pull", target=name, offset=0, peer_address=address, length=length) == 0
        assert pair.peer.read(0, length) == CONTENT[:length]
        pair.peer.write(0, b"x" * length)
        assert pair.peer.ask("push", target=name, offset=0, peer_address=address, length=length) != 0
    assert bytes(memory) == CONTENT
    assert pair.engine.unregister_memory(memory) == 0


def test_a_mapping_registered_by_address_is_known_to_be_read_only(pair, tmp_path):
    memory = mapped_file(tmp_path)
    address = address_of(memory)
    assert pair.engine.register_memory(address, SIZE) == 0
    assert pair.peer.ask("pull", target=pair.local.name, offset=0, peer_address=address, length=64) == 0
    assert pair.peer.ask("push", target=pair.local.name, offset=0, peer_address=address, length=64) != 0
    assert memory[:64] == CONTENT[:64]
    assert pair.engine.unregister_memory(address) == 0


def test_memory_that_is_not_mapped_is_refused_with_the_reason(local):
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.munmap(ctypes.c_void_p(address + page), ctypes.c_size_t(page)) == 0
    assert local.engine.register_memory(address, 4 * page) < 0
    assert hex(address + page) in local.engine.last_error()
    assert local.engine.register_memory(16, 4096) < 0
    assert local.engine.register_memory(address, page) == 0
    assert local.engine.unregister_memory(address) == 0


def test_the_first_buffer_is_the_one_registered_first(local):
    memory = np.zeros(3 * SIZE, np.uint8)
    base = memory.ctypes.data
    assert local.engine.unregister_memory(local.address) == 0
    for part in (2, 0, 1):
        assert local.engine.register_memory(base + part * SIZE, SIZE) == 0
    assert local.engine.get_first_buffer_address(local.name) == base + 2 * SIZE
    assert local.engine.unregister_memory(base + 2 * SIZE) == 0
    assert local.engine.get_first_buffer_address(local.name) == base
