# SPDX-License-Identifier: Apache-2.0
"""The messages of the RPC helper, whole, in pieces and damaged."""

from __future__ import annotations

import gc
import random
import struct
import weakref
from typing import Any

import pytest

from mooncake._rpc_frames import (ANSWER_FRAME, DATA, HEADER_BYTES, PAYLOAD_BYTES_MAX, TENSOR, FrameError, FrameReader, data_header,
                                  tensor_header)


def feed(reader: FrameReader, data: bytes, pieces: random.Random) -> list[Any]:
    """As a socket would: pieces of any size."""
    messages = []
    while data:
        space = reader.space()
        count = min(len(space), len(data), pieces.randint(1, 40))
        space[:count], data = data[:count], data[count:]
        message = reader.advance(count)
        if message is not None:
            messages.append((message.kind, bytes(message.memory), message.shape, message.dtype))
    return messages


def test_frames_come_through_in_any_pieces():
    pieces, reader = random.Random(1), FrameReader()
    frames = data_header(3) + b"abc" + data_header(0) + tensor_header((2, 3), "int16", 2) + bytes(12)
    frames += tensor_header((), "float32", 4) + b"1234" + tensor_header((0, 5), "bfloat16", 2) + data_header(1) + b"z"
    for _ in range(50):
        assert feed(reader, frames, pieces) == [
            (DATA, b"abc", (), ""), (DATA, b"", (), ""), (TENSOR, bytes(12), (2, 3), "int16"), (TENSOR, b"1234", (), "float32"),
            (TENSOR, b"", (0, 5), "bfloat16"), (DATA, b"z", (), "")]


def header(kind: int, dimensions: int, name_length: int, element_bytes: int, payload_bytes: int, magic: bytes = b"MRP1") -> bytes:
    return struct.pack("<4sBBBBQ", magic, kind, dimensions, name_length, element_bytes, payload_bytes)


@pytest.mark.parametrize("frame", [
    bytes(HEADER_BYTES), ANSWER_FRAME, header(DATA, 0, 0, 0, 0, b"MRP2"), header(7, 0, 0, 0, 0), header(DATA, 0, 0, 0, PAYLOAD_BYTES_MAX + 1),
    header(DATA, 1, 0, 0, 0), header(DATA, 0, 1, 0, 0), header(DATA, 0, 0, 1, 0),
    header(TENSOR, 65, 4, 4, 0), header(TENSOR, 1, 0, 4, 0), header(TENSOR, 1, 33, 4, 0),
    header(TENSOR, 1, 4, 4, 8) + struct.pack("<Q", 3) + b"int8",  # 12 bytes are needed
    header(TENSOR, 1, 4, 0, 0) + struct.pack("<Q", 3) + b"int8",
    header(TENSOR, 1, 4, 1, 3) + struct.pack("<Q", 3) + b"../x",
    header(TENSOR, 2, 4, 1, 0) + struct.pack("<QQ", 1 << 63, 1 << 63) + b"int8",  # 0 modulo 2**64
], ids=range(15))
def test_frames_that_cannot_be_are_refused(frame):
    with pytest.raises(FrameError):
        feed(FrameReader(), frame, random.Random(1))


def test_random_and_damaged_bytes_give_messages_or_an_error_and_nothing_else():
    source = random.Random(20261115)
    good = tensor_header((2, 3), "int16", 2) + bytes(12) + data_header(5) + b"abcde"
    outcomes = {"message": 0, "error": 0, "more": 0}
    for _ in range(20_000):
        if source.random() < 0.3:
            data = b"MRP1" * source.randint(0, 1) + source.randbytes(source.randint(1, 80))
        else:
            damaged = bytearray(good)
            for _ in range(source.randint(0, 3)):
                damaged[source.randrange(len(damaged))] = source.randrange(256)
            data = bytes(damaged[:source.randint(1, len(damaged))])
        try:
            outcomes["message" if feed(FrameReader(), data, source) else "more"] += 1
        except (FrameError, OSError):  # OSError: no memory for what was promised
            outcomes["error"] += 1
    assert min(outcomes.values()) > 100


@pytest.mark.parametrize("frame", [data_header(1 << 20), tensor_header((1 << 20,), "int8", 1)], ids=["data", "tensor"])
def test_a_message_that_is_broken_off_gives_its_memory_back_at_once(frame):
    """Also where nobody collects garbage, as in servers that have switched it off."""
    reader = FrameReader()
    feed(reader, frame + bytes(100), random.Random(1))
    memory = weakref.ref(reader.space().obj)
    gc.disable()
    try:
        del reader
        assert memory() is None
    finally:
        gc.enable()


def test_what_does_not_fit_into_a_frame_is_not_sent():
    for shape, dtype, element_bytes in (((1,) * 65, "int8", 1), ((1 << 40,), "int8", 1), ((1,), "Int8", 1), ((1,), "x" * 33, 1), ((1,), "int8", 256)):
        with pytest.raises(FrameError):
            tensor_header(shape, dtype, element_bytes)
    with pytest.raises(FrameError):
        data_header(PAYLOAD_BYTES_MAX + 1)
