# SPDX-License-Identifier: Apache-2.0
"""Between tensors and bytes. torch is imported only when a tensor is to be made; what is read from one is asked of it alone."""

from __future__ import annotations

import ctypes
import operator
from typing import TYPE_CHECKING, Any, Callable, Sequence

from ._record import record
from ._tensor_format import DIMENSIONS_MAX, HEADER_BYTES, Axis, Header, dtype_code, parse_header

if TYPE_CHECKING:
    from .store import MooncakeDistributedStore, ReplicateConfig

INVALID_PARAMS, NOT_OF_A_GPU = -600, -1012


@record
class Serialized:
    """A tensor as it will be stored; `owner` keeps the memory at `address`."""

    header: bytes
    address: int
    length: int
    owner: Any


def is_tensor(value: Any) -> bool:
    return "Tensor" in type(value).__name__ or any("Tensor" in base.__name__ for base in type(value).__mro__)


def device_of(tensor: Any) -> str:
    """"cpu", "cuda", ..."""
    return getattr(getattr(tensor, "device", None), "type", "cpu")


def wait_for_work(tensor: Any) -> None:
    """Until the GPU has done what this thread has asked of it before: its elements are there, and nobody uses its memory any more."""
    if device_of(tensor) == "cuda":
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()


def serialize(tensor: Any, axes: Sequence[Axis] = (), global_shape: Sequence[int] | None = None) -> Serialized | None:
    """None for what is no tensor, or cannot be stored."""
    if not is_tensor(tensor):
        return None
    code, shape = dtype_code(tensor.dtype), tuple(int(extent) for extent in tensor.shape)
    if code is None or len(shape) > DIMENSIONS_MAX:
        return None
    try:
        if device_of(tensor) not in ("cpu", "cuda"):
            tensor = tensor.cpu()
        if getattr(tensor, "is_neg", bool)():  # its memory holds the elements with the other sign
            tensor = tensor.resolve_neg()
        tensor = tensor.contiguous()
        wait_for_work(tensor)
        address = tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, on the device "meta", ...: there is no row of elements
        return None
    header = Header(code, shape, tuple(global_shape) if global_shape is not None else shape, list(axes))
    return Serialized(header.pack(), address, header.data_bytes, tensor)


def write(store: MooncakeDistributedStore, keys: Sequence[str], items: Sequence[Serialized | None], config: ReplicateConfig | None,
          replace: bool) -> list[int]:
    """One code per key; -600 where there is nothing to write."""
    from .store import _address_of

    headers = bytearray().join(item.header if item else bytes(HEADER_BYTES) for item in items)
    base = _address_of(headers) if items else 0
    addresses, sizes = [], []
    for index, item in enumerate(items):
        if item is None:  # refused by the store, as any null address
            addresses.append([0])
            sizes.append([1])
        else:
            addresses.append([base + index * HEADER_BYTES, item.address])
            sizes.append([HEADER_BYTES, item.length])
    call = store._batch_upsert_from_multi_buffers if replace else store.batch_put_from_multi_buffers
    return call(list(keys), addresses, sizes, config) or [INVALID_PARAMS] * len(keys)


def tensor_at(address: int, header: Header, owner: Any = None) -> Any:
    """A tensor of the memory behind a header at `address`, which `owner` keeps (None: the caller does)."""
    import torch

    dtype = getattr(torch, header.dtype_name)
    if header.data_bytes == 0:
        return torch.empty(header.shape, dtype=dtype)
    memory = (ctypes.c_ubyte * header.data_bytes).from_address(operator.index(address) + HEADER_BYTES)
    memory.owner = owner  # kept by the tensor's storage
    return torch.frombuffer(memory, dtype=dtype).reshape(header.shape)


def header_at(address: int, total_bytes: int) -> Header | None:
    address, total_bytes = operator.index(address), operator.index(total_bytes)  # numpy's integers, too
    if total_bytes < HEADER_BYTES or not is_readable(address, HEADER_BYTES):
        return None
    return parse_header(ctypes.string_at(address, HEADER_BYTES), total_bytes)


def tensors_at(addresses: Sequence[int], sizes: Sequence[int]) -> list[Any]:
    """Tensors that are the callers' memory, as for tensor_at(); None where there is none, or not all of it."""
    found: list[Any] = []
    for address, size in zip(addresses, sizes):
        header = header_at(address, size)
        there = header is not None and is_readable(operator.index(address), HEADER_BYTES + header.data_bytes)
        found.append(tensor_at(address, header) if header is not None and there else None)
    return found


def is_readable(address: int, length: int) -> bool:
    from . import store

    return 0 < address < 1 << 64 and store._is_readable(address, length)


def is_writable(address: int, length: int) -> bool:
    from . import store

    return 0 < address < 1 << 64 and store._is_writable(address, length)


def read(store: MooncakeDistributedStore, keys: Sequence[str], wanted: Callable[[Header], bool] = lambda _: True) -> list[Any]:
    """Tensors with memory of their own; None for what is missing, no tensor or not wanted."""
    import torch

    sizes = store._batch_get_size(list(keys))
    there = [index for index, size in enumerate(sizes) if size >= HEADER_BYTES]
    buffers = {index: torch.empty(sizes[index], dtype=torch.uint8) for index in there}
    lengths = store.batch_get_into([keys[index] for index in there], [buffers[index].data_ptr() for index in there],
                                   [sizes[index] for index in there])
    tensors: list[Any] = [None] * len(keys)
    for index, length in zip(there, lengths):
        header = header_at(buffers[index].data_ptr(), length)
        if header is not None and wanted(header):
            tensors[index] = _within(buffers[index], header)
    return tensors


def _within(buffer: Any, header: Header) -> Any:
    """The tensor in a row of bytes that begins with its header."""
    import torch

    dtype = getattr(torch, header.dtype_name)
    if header.data_bytes == 0:
        return torch.empty(header.shape, dtype=dtype)
    return buffer[HEADER_BYTES:HEADER_BYTES + header.data_bytes].view(dtype).reshape(header.shape)


def read_into(store: MooncakeDistributedStore, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[Any]:
    """Tensors that are the callers' memory; None for what is missing, too long or no tensor."""
    tensors: list[Any] = []
    addresses, sizes = [operator.index(one) for one in addresses], [operator.index(one) for one in sizes]
    for address, length in zip(addresses, store.batch_get_into(list(keys), addresses, sizes)):
        header = header_at(address, length)
        tensors.append(None if header is None else tensor_at(address, header))
    return tensors


def read_into_tensors(store: MooncakeDistributedStore, keys: Sequence[str], tensors: Sequence[Any]) -> list[int]:
    """Fills tensors of GPUs with the stored ones, of the same type and shape. Their lengths as stored, or codes; what is refused is left as it was."""
    codes = [INVALID_PARAMS] * len(keys)
    wanted: dict[int, Header] = {}
    for index, tensor in enumerate(tensors):
        if not is_tensor(tensor) or device_of(tensor) != "cuda":
            codes[index] = NOT_OF_A_GPU
        elif tensor.is_contiguous():
            code, shape = dtype_code(tensor.dtype), tuple(int(extent) for extent in tensor.shape)
            if code is not None and len(shape) <= DIMENSIONS_MAX:
                wanted[index] = Header(code, shape, shape)
    if not wanted:
        return codes
    # The headers first, of the very values whose elements come then.
    names = sorted({keys[index] for index in wanted})
    opened = dict(zip(names, store.batch_get_session_start(names)))
    try:
        for index, header in wanted.items():
            codes[index] = opened[keys[index]] or _read_into_tensor(store, keys[index], tensors[index], header)
    finally:
        store.batch_get_session_end([name for name, code in opened.items() if code == 0])
    return codes


def _read_into_tensor(store: MooncakeDistributedStore, key: str, tensor: Any, wanted: Header) -> int:
    text = ctypes.create_string_buffer(HEADER_BYTES)
    (moved,) = store.batch_get_into_multi_buffer_ranges([key], [[ctypes.addressof(text)]], [[HEADER_BYTES]], [[0]])
    if moved < 0:
        return moved
    found = parse_header(text.raw, HEADER_BYTES + wanted.data_bytes)
    if found is None or (found.dtype, tuple(found.shape)) != (wanted.dtype, tuple(wanted.shape)):
        return INVALID_PARAMS
    if wanted.data_bytes == 0:
        return HEADER_BYTES
    wait_for_work(tensor)
    (moved,) = store.batch_get_into_multi_buffer_ranges([key], [[tensor.data_ptr()]], [[wanted.data_bytes]], [[HEADER_BYTES]])
    return moved if moved < 0 else HEADER_BYTES + moved


def deserialize(data: Any) -> Any:
    """The tensor in a stored value. ValueError if there is none."""
    memory = bytearray(data)
    header = parse_header(bytes(memory[:HEADER_BYTES]), len(memory))
    if header is None:
        raise ValueError("not a stored tensor")
    from .store import _address_of

    return tensor_at(_address_of(memory), header, memory)


def split(tensor: Any, count: int, dimension: int) -> list[Any] | None:
    """Equal parts; None if that cannot be."""
    shape = tuple(tensor.shape)
    if count <= 0 or not 0 <= dimension < len(shape) or shape[dimension] % count:
        return None
    extent = shape[dimension] // count
    try:
        return [tensor.narrow(dimension, rank * extent, extent) for rank in range(count)]
    except (RuntimeError, NotImplementedError):  # sparse
        return None
