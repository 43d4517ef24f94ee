# SPDX-License-Identifier: Apache-2.0
"""Messages of the RPC helper as they travel. No sockets here.

All little endian. Header (16 bytes): "MRP1", u8 kind (1 data, 2 tensor, 3 answer), u8 dimensions, u8 length of the name of the type, u8 bytes
per element, u64 bytes of payload. A tensor continues with one u64 per dimension and the name of its type in ASCII. Then the payload.
The answer to each message is a header alone.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from typing import Callable, Sequence

DATA, TENSOR, ANSWER = 1, 2, 3
PAYLOAD_BYTES_MAX = 4 << 30
DIMENSIONS_MAX = 64
DTYPE_CHARACTERS_MAX = 32

_MAGIC = b"MRP1"
_HEADER = struct.Struct("<4sBBBBQ")
HEADER_BYTES = _HEADER.size
_DTYPE = re.compile(rb"[a-z][a-z0-9_]*")
_BYTEARRAY_MAX = 1 << 16
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux; Python knows the name since 3.13

ANSWER_FRAME = _HEADER.pack(_MAGIC, ANSWER, 0, 0, 0, 0)


class FrameError(ValueError):
    """What arrived is no message of ours, or what is to be sent does not fit into one."""


@dataclass
class Message:
    kind: int
    memory: memoryview  # of bytes; keeps the payload
    shape: tuple[int, ...] = ()
    dtype: str = ""


def data_header(payload_bytes: int) -> bytes:
    _check_size(payload_bytes)
    return _HEADER.pack(_MAGIC, DATA, 0, 0, 0, payload_bytes)


def tensor_header(shape: Sequence[int], dtype: str, element_bytes: int) -> bytes:
    name, payload_bytes = dtype.encode(), math.prod(shape) * element_bytes
    _check_size(payload_bytes)
    if len(shape) > DIMENSIONS_MAX:
        raise FrameError(f"a tensor of {len(shape)} dimensions; at most {DIMENSIONS_MAX} are possible")
    if len(name) > DTYPE_CHARACTERS_MAX or not _DTYPE.fullmatch(name) or not 1 <= element_bytes <= 255:
        raise FrameError(f"tensors of type {dtype!r} cannot be sent")
    header = _HEADER.pack(_MAGIC, TENSOR, len(shape), len(name), element_bytes, payload_bytes)
    return header + struct.pack(f"<{len(shape)}Q", *shape) + name


def _check_size(payload_bytes: int) -> None:
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise FrameError(f"{payload_bytes} bytes are more than the {PAYLOAD_BYTES_MAX} of one message")


def _memory(length: int) -> memoryview:
    """Zeroed lazily where it is large: a header that promises much costs nothing until the bytes come, nor is it in the way of a fork()."""
    if length <= _BYTEARRAY_MAX:
        return memoryview(bytearray(length))
    return memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE))


class FrameReader:
    """Puts messages together from whatever pieces arrive: receive into space(), then tell advance() how much it was. What it has of a message that
    never becomes whole goes with it, at once: it does not refer to itself, as bound methods would."""

    def __init__(self) -> None:
        self._begin()

    def space(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        return self._view[self._filled:]

    def advance(self, count: int) -> Message | None:
        """The message, if it is complete. FrameError if it cannot become one; OSError if there is no memory for it."""
        self._filled += count
        while self._filled == len(self._view):
            message = self._stage(self)
            if message is not None:
                self._begin()
                return message
        return None

    def _begin(self) -> None:
        self._expect(HEADER_BYTES, FrameReader._take_header)

    def _expect(self, length: int, stage: Callable[[FrameReader], Message | None]) -> None:
        self._view, self._filled, self._stage = _memory(length), 0, stage

    def _take_header(self) -> None:
        magic, kind, dimensions, name_length, element_bytes, payload_bytes = _HEADER.unpack(self._view)
        if magic != _MAGIC or kind not in (DATA, TENSOR):
            raise FrameError("not a message of this protocol")
        _check_size(payload_bytes)
        self._message, self._payload_bytes, self._element_bytes = Message(kind, memoryview(b"")), payload_bytes, element_bytes
        if kind == DATA:
            if dimensions or name_length or element_bytes:
                raise FrameError("data with a shape")
            self._expect(payload_bytes, FrameReader._take_payload)
            return
        if dimensions > DIMENSIONS_MAX or not 1 <= name_length <= DTYPE_CHARACTERS_MAX:
            raise FrameError("a tensor without a possible shape or type")
        self._dimensions = dimensions
        self._expect(8 * dimensions + name_length, FrameReader._take_description)

    def _take_description(self) -> None:
        split = 8 * self._dimensions
        name = bytes(self._view[split:])
        shape = struct.unpack(f"<{self._dimensions}Q", self._view[:split])
        if not _DTYPE.fullmatch(name) or self._element_bytes == 0 or math.prod(shape) * self._element_bytes != self._payload_bytes:
            raise FrameError("a tensor whose shape, type and size do not agree")
        self._message.shape, self._message.dtype = shape, name.decode()
        self._expect(self._payload_bytes, FrameReader._take_payload)

    def _take_payload(self) -> Message:
        self._message.memory = self._view
        return self._message
