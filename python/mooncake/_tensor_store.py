# SPDX-License-Identifier: Apache-2.0
"""The calls of MooncakeDistributedStore that take and give tensors; the native module takes them from here."""

from __future__ import annotations

import operator
import os
import struct
from typing import TYPE_CHECKING, Any, Sequence

from . import _tensors as tensors
from ._tensor_format import DIMENSIONS_MAX, DTYPES, HEADER_BYTES, Axis, Header, safetensor_code
from ._tensor_parallel import PARALLEL_METHODS, ParallelAxis, ReadTarget, TensorParallelism
from ._tensors import INVALID_PARAMS

if TYPE_CHECKING:
    from .store import MooncakeDistributedStore as Store
    from .store import ReplicateConfig

_FILE_NOT_FOUND, _FILE_OPEN_FAIL, _FILE_WRITE_FAIL = -1100, -1101, -1103
_SAFETENSOR_HEADER_MAX = 100 << 20


def _publishable(config: ReplicateConfig | None) -> bool:
    return config is None or not config.preferred_segments or len(config.preferred_segments) == config.replica_num


def _write_all(store: Store, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None,
               replace: bool) -> list[int]:
    if len(keys) != len(values) or not _publishable(config):
        return [INVALID_PARAMS] * len(keys)
    if not keys:
        return []
    return tensors.write(store, keys, [tensors.serialize(value) for value in values], config, replace)


def put_tensor(self: Store, key: str, tensor: Any) -> int:
    """Stores a tensor with its type and shape. Returns 0 or a code: -600 for a type that cannot be stored or more than 8 dimensions."""
    return _write_all(self, [key], [tensor], None, False)[0]


def batch_put_tensor(self: Store, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
    """put_tensor() for each key, in one go."""
    return _write_all(self, keys, tensors_list, None, False)


def pub_tensor(self: Store, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
    """As put_tensor(), with a configuration; preferred_segments then has one entry per replica."""
    return _write_all(self, [key], [tensor], config, False)[0]


def batch_pub_tensor(self: Store, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig | None = None) -> list[int]:
    """pub_tensor() for each key, in one go."""
    return _write_all(self, keys, tensors_list, config, False)


def upsert_tensor(self: Store, key: str, tensor: Any) -> int:
    """As put_tensor(), replacing a value that is there."""
    return _write_all(self, [key], [tensor], None, True)[0]


def batch_upsert_tensor(self: Store, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
    """upsert_tensor() for each key, in one go."""
    return _write_all(self, keys, tensors_list, None, True)


def upsert_pub_tensor(self: Store, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
    """As pub_tensor(), replacing a value that is there."""
    return _write_all(self, [key], [tensor], config, True)[0]


def batch_upsert_pub_tensor(self: Store, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig | None = None) -> list[int]:
    """upsert_pub_tensor() for each key, in one go."""
    return _write_all(self, keys, tensors_list, config, True)


def get_tensor(self: Store, key: str) -> Any:
    """The tensor, with memory of its own; None if there is none."""
    return tensors.read(self, [key])[0]


def batch_get_tensor(self: Store, keys: Sequence[str]) -> list[Any]:
    """get_tensor() for each key, in one go."""
    return tensors.read(self, keys)


def get_tensor_into(self: Store, key: str, buffer_ptr: int, size: int) -> Any:
    """The tensor, read into the caller's memory and made of it; None if there is none or it is too long."""
    return tensors.read_into(self, [key], [buffer_ptr], [size])[0]


def batch_get_tensor_into(self: Store, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[Any]:
    """get_tensor_into() for each key. A list of -600 if the lists are not equally long."""
    if not len(keys) == len(buffer_ptrs) == len(sizes):
        return [INVALID_PARAMS] * len(keys)
    return tensors.read_into(self, keys, buffer_ptrs, sizes)


def get_tensor_into_cuda(self: Store, key: str, tensor: Any) -> int:
    """Fills a tensor of a GPU with the stored one, which has its type and shape. Returns the length of what is stored, or a code: -600: it is another
    tensor, or this one is not contiguous; -1012: this one is not a GPU's."""
    return tensors.read_into_tensors(self, [key], [tensor])[0]


def batch_get_tensor_into_cuda(self: Store, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
    """get_tensor_into_cuda() for each key. Returns a list of lengths and codes."""
    if len(keys) != len(tensors_list):
        return [INVALID_PARAMS] * len(keys)
    return tensors.read_into_tensors(self, keys, tensors_list)


# ---- from memory that holds a stored tensor already


def _from_memory(store: Store, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int], replace: bool) -> list[int]:
    if not len(keys) == len(addresses) == len(sizes):
        return [INVALID_PARAMS] * len(keys)
    valid = [operator.index(address) if tensors.header_at(address, size) else 0 for address, size in zip(addresses, sizes)]
    call = store.batch_upsert_from if replace else store.batch_put_from
    return call(list(keys), valid, [max(1, operator.index(size)) for size in sizes])


def put_tensor_from(self: Store, key: str, buffer_ptr: int, size: int) -> int:
    """Stores `size` bytes that are a header and the elements of a tensor, as get_tensor_into() leaves them. -600 if they are not."""
    return _from_memory(self, [key], [buffer_ptr], [size], False)[0]


def batch_put_tensor_from(self: Store, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """put_tensor_from() for each key, in one go."""
    return _from_memory(self, keys, buffer_ptrs, sizes, False)


def upsert_tensor_from(self: Store, key: str, buffer_ptr: int, size: int) -> int:
    """As put_tensor_from(), replacing a value that is there."""
    return _from_memory(self, [key], [buffer_ptr], [size], True)[0]


def batch_upsert_tensor_from(self: Store, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """upsert_tensor_from() for each key, in one go."""
    return _from_memory(self, keys, buffer_ptrs, sizes, True)


# ---- cut into equal parts for tensor parallelism


def _shard_key(key: str, rank: int, size: int) -> str:
    return key if size <= 1 else f"{key}_tp_{rank}"


def _write_split(store: Store, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None, size: int,
                 dimension: int) -> list[int]:
    """Per key 0 or the first failure among its parts."""
    if len(keys) != len(values) or not _publishable(config) or (config is not None and config.group_ids and size > 1):
        return [INVALID_PARAMS] * len(keys)
    if size <= 1:
        return _write_all(store, keys, values, config, False)
    results, names, items, of_key = [0] * len(keys), [], [], []
    for index, (key, value) in enumerate(zip(keys, values)):
        parts = tensors.split(value, size, dimension) if tensors.is_tensor(value) else None
        if parts is None:
            results[index] = INVALID_PARAMS
            continue
        for rank, part in enumerate(parts):
            axis = Axis("tp", rank, size, dimension, 0, part.shape[dimension])
            names.append(_shard_key(key, rank, size))
            items.append(tensors.serialize(part, [axis], value.shape))
            of_key.append(index)
    for index, code in zip(of_key, tensors.write(store, names, items, config, False) if names else []):
        if code != 0 and results[index] == 0:
            results[index] = code
    return results


def put_tensor_with_tp(self: Store, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
    """Cuts a tensor into tp_size equal parts along split_dim and stores them all. -600 if that cannot be."""
    return _write_split(self, [key], [tensor], None, tp_size, split_dim)[0]


def batch_put_tensor_with_tp(self: Store, base_keys: Sequence[str], tensors_list: Sequence[Any], tp_rank: int = 0, tp_size: int = 1,
                             split_dim: int = 0) -> list[int]:
    """put_tensor_with_tp() for each key, in one go."""
    return _write_split(self, base_keys, tensors_list, None, tp_size, split_dim)


def pub_tensor_with_tp(self: Store, key: str, tensor: Any, config: ReplicateConfig | None = None, tp_rank: int = 0, tp_size: int = 1,
                       split_dim: int = 0) -> int:
    """As put_tensor_with_tp(), with a configuration."""
    return _write_split(self, [key], [tensor], config, tp_size, split_dim)[0]


def batch_pub_tensor_with_tp(self: Store, base_keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig | None = None,
                             tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> list[int]:
    """pub_tensor_with_tp() for each key, in one go."""
    return _write_split(self, base_keys, tensors_list, config, tp_size, split_dim)


def get_tensor_with_tp(self: Store, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
    """The part of this rank, as put_tensor_with_tp() stored it; None if there is none."""
    return tensors.read(self, [_shard_key(key, tp_rank, tp_size)])[0]


def batch_get_tensor_with_tp(self: Store, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1) -> list[Any]:
    """get_tensor_with_tp() for each key, in one go."""
    return tensors.read(self, [_shard_key(key, tp_rank, tp_size) for key in base_keys])


def get_tensor_with_tp_into(self: Store, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
    """As get_tensor_into(), of the part of this rank."""
    return tensors.read_into(self, [_shard_key(key, tp_rank, tp_size)], [buffer_ptr], [size])[0]


def batch_get_tensor_with_tp_into(self: Store, base_keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
                                  tp_size: int = 1) -> list[Any]:
    """get_tensor_with_tp_into() for each key."""
    return batch_get_tensor_into(self, [_shard_key(key, tp_rank, tp_size) for key in base_keys], buffer_ptrs, sizes)


def put_tensor_with_tp_from(self: Store, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
    """As put_tensor_with_tp(), of a whole tensor in memory as put_tensor_from() takes it."""
    return _write_split(self, [key], tensors.tensors_at([buffer_ptr], [size]), None, tp_size, split_dim)[0]


def batch_put_tensor_with_tp_from(self: Store, base_keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], tp_rank: int = 0,
                                  tp_size: int = 1, split_dim: int = 0) -> list[int]:
    """put_tensor_with_tp_from() for each key, in one go."""
    if not len(base_keys) == len(buffer_ptrs) == len(sizes):
        return [INVALID_PARAMS] * len(base_keys)
    return _write_split(self, base_keys, tensors.tensors_at(buffer_ptrs, sizes), None, tp_size, split_dim)


# ---- files


def save_tensor_to_safetensor(self: Store, key: str, file_name: str | None = None) -> int:
    """Writes a stored tensor to a file in the safetensors format. Returns 0 or a code: -1100: there is no such tensor."""
    import json

    from ._tensor_format import parse_header

    path = os.fspath(file_name or key)  # a number would be taken for a descriptor, and closed
    value = self.get(key)
    header = parse_header(value[:HEADER_BYTES], len(value))
    if header is None:
        return _FILE_NOT_FOUND
    entry = {"dtype": DTYPES[header.dtype][2], "shape": list(header.shape), "data_offsets": [0, header.data_bytes]}
    text = json.dumps({key: entry}).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.write(memoryview(value)[HEADER_BYTES:])
    except OSError:
        return _FILE_WRITE_FAIL
    return 0


def load_tensor_from_safetensor(self: Store, key: str | None = None, file_name: str | None = None) -> Any:
    """Reads a tensor (the one called `key`, else the first) from a file in the safetensors format and stores it under `key`, or the
    file's name. Returns it, or None if that failed."""
    if file_name is None:
        raise TypeError("load_tensor_from_safetensor() missing required argument: file_name")
    file_name = os.fspath(file_name)
    found = _read_safetensor(file_name, key)
    if found is None:
        return None
    tensor = tensors.deserialize(found)
    return tensor if put_tensor(self, key or file_name, tensor) == 0 else None


def _read_safetensor(file_name: str, key: str | None) -> bytearray | None:
    """A stored tensor out of a file; None if the file is damaged."""
    import json

    try:
        with open(file_name, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            file_bytes = os.fstat(file.fileno()).st_size
            if length > min(_SAFETENSOR_HEADER_MAX, file_bytes):
                return None
            entries = json.loads(file.read(length))
            entries.pop("__metadata__", None)
            entry = entries[key] if key in entries else next(iter(entries.values()))
            code, shape, (start, end) = safetensor_code(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
            if code is None or not _is_shape(shape) or not 0 <= start <= end <= file_bytes - 8 - length:
                return None
            header = Header(code, shape, shape)
            if header.data_bytes != end - start:
                return None
            file.seek(8 + length + start)
            data = file.read(end - start)
            return bytearray(header.pack() + data) if len(data) == end - start else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError, struct.error):
        return None


def _is_shape(shape: tuple[Any, ...]) -> bool:
    return len(shape) <= DIMENSIONS_MAX and all(type(extent) is int and extent >= 0 for extent in shape)


# ---- what is handed to other modules


def _serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """(header, address, bytes, what keeps the memory). ValueError for what cannot be stored."""
    item = tensors.serialize(tensor)
    if item is None:
        raise ValueError("not a tensor that can be stored")
    return item.header, item.address, item.length, item.owner


def _tensor_metadata_size() -> int:
    return HEADER_BYTES


_deserialize_tensor = tensors.deserialize

TENSOR_METHODS = {
    **{method.__name__: method for method in (
        put_tensor, batch_put_tensor, pub_tensor, batch_pub_tensor, upsert_tensor, batch_upsert_tensor, upsert_pub_tensor,
        batch_upsert_pub_tensor, get_tensor, batch_get_tensor, get_tensor_into, batch_get_tensor_into, get_tensor_into_cuda,
        batch_get_tensor_into_cuda, put_tensor_from, batch_put_tensor_from, upsert_tensor_from, batch_upsert_tensor_from, put_tensor_with_tp,
        batch_put_tensor_with_tp, pub_tensor_with_tp, batch_pub_tensor_with_tp, get_tensor_with_tp, batch_get_tensor_with_tp,
        get_tensor_with_tp_into, batch_get_tensor_with_tp_into, put_tensor_with_tp_from, batch_put_tensor_with_tp_from,
        save_tensor_to_safetensor, load_tensor_from_safetensor)},
    **PARALLEL_METHODS,
}
TENSOR_NAMES = {
    "ParallelAxis": ParallelAxis,
    "TensorParallelism": TensorParallelism,
    "ReadTarget": ReadTarget,
    "_serialize_tensor": _serialize_tensor,
    "_tensor_metadata_size": _tensor_metadata_size,
    "_deserialize_tensor": _deserialize_tensor,
}
