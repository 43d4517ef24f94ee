# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in the store: a header of 304 bytes that says type, shape and place in a whole, then the elements.

All little endian. Header: u32 magic, u16 version, u16 size of header and layout, i32 type, i32 dimensions, u32 kind of layout (0 whole,
1 shard), u32 flags, u64 offset of the data, u64 bytes of data. Layout: i64[8] global shape, i64[8] local shape (-1: unused), u32 number of
axes, u32 0, then four axes of i32 kind, index, rank, count, split dimension (-1: none), expert or stage, and i64 local extent.
A manifest (96 bytes) says into how many shards a tensor was cut: u32 magic, u16 version, u16 size, i32 type, dimensions, split dimension,
number of shards, 0, four bytes of padding, i64[8] global shape.
"""

from __future__ import annotations

import math
import struct
from typing import Sequence

from ._record import field, record

HEADER_BYTES = 304
DIMENSIONS_MAX = 8
AXES_MAX = 4

_MAGIC, _MANIFEST_MAGIC, _VERSION = 0x4D4F4F4E, 0x574D414E, 1
_HEADER = struct.Struct("<IHHiiIIQQ")
_LAYOUT = struct.Struct("<8q8qII")
_AXIS = struct.Struct("<iiiiiiq")
_MANIFEST = struct.Struct("<IHHiiiii4x8q")
MANIFEST_BYTES = _MANIFEST.size

# By code: the name in torch and numpy, bytes per element, the name in safetensors files.
DTYPES = (("float32", 4, "F32"), ("float64", 8, "F64"), ("int8", 1, "I8"), ("uint8", 1, "U8"), ("int16", 2, "I16"), ("uint16", 2, "U16"),
          ("int32", 4, "I32"), ("uint32", 4, "U32"), ("int64", 8, "I64"), ("uint64", 8, "U64"), ("bool", 1, "BOOL"), ("float16", 2, "F16"),
          ("bfloat16", 2, "BF16"), ("float8_e4m3fn", 1, "F8_E4M3"), ("float8_e5m2", 1, "F8_E5M2"))
_CODES = {name: code for code, (name, _, _) in enumerate(DTYPES)}
_SAFE_CODES = {name: code for code, (_, _, name) in enumerate(DTYPES)}

KIND_CODES = {"dp": 0, "tp": 1, "ep": 2, "pp": 3}


def dtype_code(dtype: object) -> int | None:
    """The code of torch.float32, numpy's float32, ...; None for types that cannot be stored."""
    return _CODES.get(str(dtype).rsplit(".", 1)[-1])


def safetensor_code(name: str) -> int | None:
    return _SAFE_CODES.get(name)


@record
class Axis:
    """Which part of a whole this is, along one kind of parallelism."""

    kind: str
    rank: int = 0
    count: int = 1
    split_dim: int = -1
    extra: int = 0  # expert or stage
    extent: int = 0  # of the split dimension, here


@record
class Header:
    dtype: int
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    axes: list[Axis] = field(default_factory=list)

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]

    @property
    def dtype_name(self) -> str:
        return DTYPES[self.dtype][0]

    def pack(self) -> bytes:
        axes = b"".join(
            _AXIS.pack(KIND_CODES[axis.kind], index, axis.rank, axis.count, axis.split_dim, axis.extra, axis.extent)
            for index, axis in enumerate(self.axes))
        head = _HEADER.pack(_MAGIC, _VERSION, HEADER_BYTES, self.dtype, len(self.shape), 1 if self.axes else 0, 0, HEADER_BYTES, self.data_bytes)
        layout = _LAYOUT.pack(*_padded(self.global_shape), *_padded(self.shape), len(self.axes), 0)
        return (head + layout + axes).ljust(HEADER_BYTES, b"\0")


def _padded(shape: Sequence[int]) -> list[int]:
    return [*shape, *[-1] * (DIMENSIONS_MAX - len(shape))]


def parse_header(text: bytes, total_bytes: int) -> Header | None:
    """None if that is not the beginning of a stored tensor of this length."""
    if len(text) < HEADER_BYTES or total_bytes < HEADER_BYTES:
        return None
    magic, version, size, dtype, dimensions, _, _, offset, data_bytes = _HEADER.unpack_from(text)
    if (magic, version, size, offset) != (_MAGIC, _VERSION, HEADER_BYTES, HEADER_BYTES):
        return None
    if not (0 <= dtype < len(DTYPES) and 0 <= dimensions <= DIMENSIONS_MAX):
        return None
    numbers = _LAYOUT.unpack_from(text, _HEADER.size)
    global_shape, shape = numbers[:dimensions], numbers[DIMENSIONS_MAX:DIMENSIONS_MAX + dimensions]
    count = numbers[-2]
    if any(extent < 0 for extent in shape) or count > AXES_MAX:
        return None
    header = Header(dtype, shape, global_shape)
    if header.data_bytes != data_bytes or data_bytes != total_bytes - HEADER_BYTES:
        return None
    kinds = {code: kind for kind, code in KIND_CODES.items()}
    for index in range(count):
        kind, _, rank, shards, split_dim, extra, extent = _AXIS.unpack_from(text, _HEADER.size + _LAYOUT.size + index * _AXIS.size)
        if kind in kinds:
            header.axes.append(Axis(kinds[kind], rank, shards, split_dim, extra, extent))
    return header


@record
class Manifest:
    dtype: int
    split_dim: int
    shard_count: int
    global_shape: tuple[int, ...]

    def pack(self) -> bytes:
        return _MANIFEST.pack(_MANIFEST_MAGIC, _VERSION, MANIFEST_BYTES, self.dtype, len(self.global_shape), self.split_dim, self.shard_count, 0,
                              *_padded(self.global_shape))


def parse_manifest(text: bytes) -> Manifest | None:
    if len(text) != MANIFEST_BYTES:
        return None
    magic, version, size, dtype, dimensions, split_dim, count, _, *shape = _MANIFEST.unpack(text)
    if (magic, version, size) != (_MANIFEST_MAGIC, _VERSION, MANIFEST_BYTES):
        return None
    if not (0 <= dtype < len(DTYPES) and 0 <= dimensions <= DIMENSIONS_MAX and 0 <= split_dim < max(1, dimensions) and count > 0):
        return None
    return Manifest(dtype, split_dim, count, tuple(shape[:dimensions]))
