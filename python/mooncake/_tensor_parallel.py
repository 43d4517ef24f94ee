# SPDX-License-Identifier: Apache-2.0
"""Tensors that are parts of larger ones: how they were cut, what the parts are called, and how a whole is put together again.

One axis of tensor parallelism: the part that is given is stored. Several axes with one of tensor parallelism among them: the whole is given,
and the part that the axes name is stored. A manifest beside the parts says how many there are.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Sequence

from . import _tensors as tensors
from ._record import field, record
from ._tensor_format import AXES_MAX, KIND_CODES, Axis, Header, Manifest, dtype_code, parse_manifest
from ._tensors import INVALID_PARAMS, Serialized

if TYPE_CHECKING:
    from .store import MooncakeDistributedStore as Store
    from .store import ReplicateConfig

_MODES = ("as_stored", "shard", "full")


@record
class ParallelAxis:
    """One kind of parallelism: "tp" needs split_dim, "ep" expert_id, "pp" stage_id; "dp" none of them."""

    kind: str = ""
    rank: int = 0
    size: int = 1
    split_dim: int | None = None
    expert_id: int | None = None
    stage_id: int | None = None

    def _checked(self) -> Axis | None:
        kind = str(self.kind).lower()
        if kind not in KIND_CODES or self.size <= 0 or not 0 <= self.rank < self.size:
            return None
        if (kind == "tp") != (self.split_dim is not None) or (self.split_dim is not None and self.split_dim < 0):
            return None
        extra = {"ep": self.expert_id, "pp": self.stage_id}.get(kind, 0)
        return None if extra is None else Axis(kind, self.rank, self.size, -1 if self.split_dim is None else self.split_dim, extra)


@record
class TensorParallelism:
    """The axes along which a tensor is spread, at most one of each kind."""

    axes: list[ParallelAxis] = field(default_factory=list)

    def _checked(self) -> list[Axis] | None:
        """In the order in which they are named in keys; None if they make no sense."""
        axes = [axis._checked() for axis in self.axes]
        if not 0 < len(axes) <= AXES_MAX or None in axes or len({axis.kind for axis in axes if axis}) != len(axes):
            return None
        return sorted((axis for axis in axes if axis), key=lambda axis: KIND_CODES[axis.kind])


class ReadTarget:
    """What is to be read: "as_stored", the "shard" that `parallelism` names, or the tensor in "full"."""

    def __init__(self) -> None:
        self._mode = "as_stored"
        self.parallelism: TensorParallelism | None = None

    @property
    def mode(self) -> str:
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        lower = mode.lower() if isinstance(mode, str) else None
        if lower not in _MODES:
            raise RuntimeError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
        self._mode = lower


# ---- names


def _axis_name(axis: Axis) -> str:
    split = f"_sd{axis.split_dim}" if axis.kind == "tp" else ""
    expert = f"_eid{axis.extra}" if axis.kind == "ep" else ""
    stage = f"_sid{axis.extra}" if axis.kind == "pp" else ""
    return f"__{axis.kind}_{axis.rank}of{axis.count}{split}{expert}{stage}"


def _part_key(key: str, axes: Sequence[Axis]) -> str:
    if len(axes) == 1 and axes[0].kind == "tp":
        return f"{key}_tp_{axes[0].rank}"
    return key + "".join(_axis_name(axis) for axis in axes)


def _writer_key(key: str, rank: int, size: int, split_dim: int) -> str:
    return f"{key}__writer_{rank}of{size}_sd{split_dim}"


# ---- writing


@record
class _Plan:
    """What one call stores: a part and, if it is one of several, the manifest."""

    key: str
    item: Serialized
    manifest_key: str | None = None
    manifest: bytes = b""


def _cut(tensor: Any, axes: list[Axis]) -> tuple[Any, list[int]] | None:
    """The part to store, and the shape of the whole."""
    shape = [int(extent) for extent in tensor.shape]
    split = next((axis for axis in axes if axis.kind == "tp"), None)
    if split is None:
        return tensor, shape
    if split.split_dim >= len(shape):
        return None
    if len(axes) == 1:
        shape[split.split_dim] *= split.count
        part = tensor
    else:
        parts = tensors.split(tensor, split.count, split.split_dim)
        if parts is None:
            return None
        part = parts[split.rank]
    split.extent = int(part.shape[split.split_dim])
    return part, shape


def _plan_axes(key: str, tensor: Any, axes: list[Axis]) -> _Plan | None:
    cut = _cut(tensor, axes)
    item = None if cut is None else tensors.serialize(cut[0], axes, cut[1])
    if cut is None or item is None:
        return None
    split = next((axis for axis in axes if axis.kind == "tp"), None)
    if split is None:
        return _Plan(_part_key(key, axes), item)
    manifest = Manifest(dtype_code(tensor.dtype) or 0, split.split_dim, split.count, tuple(cut[1]))
    return _Plan(_part_key(key, axes), item, f"{key}__parallelism_manifest", manifest.pack())


def _plan_writer(key: str, tensor: Any, partition: Any) -> _Plan | None:
    try:
        rank, size, dimension = int(partition.rank), int(partition.size), int(partition.split_dim)
    except (AttributeError, TypeError, ValueError):
        return None
    shape = [int(extent) for extent in tensor.shape]
    if not 0 <= rank < size:
        return None
    parts = tensors.split(tensor, size, dimension)
    if parts is None:
        return None
    item = tensors.serialize(parts[rank], [Axis("tp", rank, size, dimension, 0, shape[dimension] // size)], shape)
    if item is None:
        return None
    manifest = Manifest(dtype_code(tensor.dtype) or 0, dimension, size, tuple(shape))
    return _Plan(_writer_key(key, rank, size, dimension), item, f"{key}__writer_manifest", manifest.pack())


def _plan(key: str, tensor: Any, parallelism: TensorParallelism | None, partition: Any) -> _Plan | None:
    if not tensors.is_tensor(tensor) or (parallelism is not None and partition is not None):
        return None
    if partition is not None:
        return _plan_writer(key, tensor, partition)
    if parallelism is not None:
        axes = parallelism._checked()
        return None if axes is None else _plan_axes(key, tensor, axes)
    item = tensors.serialize(tensor)
    return None if item is None else _Plan(key, item)


def _per_item(values: Sequence[Any] | None, count: int) -> Sequence[Any] | None:
    """One per key; None if their number is wrong."""
    if values is None:
        return [None] * count
    return values if len(values) == count else None


def _write(store: Store, keys: Sequence[str], values: Sequence[Any], parallelisms: Sequence[Any] | None,
           config: ReplicateConfig | None, partitions: Sequence[Any] | None, replace: bool) -> list[int]:
    cuts, writers = _per_item(parallelisms, len(keys)), _per_item(partitions, len(keys))
    if len(values) != len(keys) or cuts is None or writers is None:
        return [INVALID_PARAMS] * len(keys)
    if not keys:
        return []
    plans = [_plan(*one) for one in zip(keys, values, cuts, writers)]
    codes = tensors.write(store, [plan.key if plan else key for plan, key in zip(plans, keys)], [plan.item if plan else None for plan in plans],
                          config, replace)
    manifests = {plan.manifest_key: plan.manifest for plan, code in zip(plans, codes) if plan and plan.manifest_key and code == 0}
    if manifests:  # after the parts: a manifest that can be seen has at least one
        failure = store.upsert_batch(list(manifests), list(manifests.values()))
        if failure:
            return [code or (failure if plan and plan.manifest_key else 0) for plan, code in zip(plans, codes)]
    return codes


# ---- reading


def _whole(store: Store, key: str, others: Sequence[Axis]) -> Any:
    """The tensor in full: stored as such, or put together from its parts. `others`: axes that are not tensor parallelism."""
    import torch

    whole = tensors.read(store, [key])[0]
    if whole is not None:
        return whole
    for name in ("parallelism", "writer"):
        manifest = parse_manifest(store.get(f"{key}__{name}_manifest"))
        if manifest is None:
            continue
        if name == "writer":
            keys = [_writer_key(key, rank, manifest.shard_count, manifest.split_dim) for rank in range(manifest.shard_count)]
        else:
            keys = [_part_key(key, sorted([*others, Axis("tp", rank, manifest.shard_count, manifest.split_dim)],
                                          key=lambda axis: KIND_CODES[axis.kind])) for rank in range(manifest.shard_count)]
        parts = tensors.read(store, keys)
        if all(part is not None for part in parts):
            full = torch.cat(parts, dim=manifest.split_dim)
            return full if tuple(full.shape) == manifest.global_shape else None
    return None


def _cut_as(header: Header, split: Axis | None) -> bool:
    """False for the part of another cut: the name of a part of one axis tells only its rank."""
    found = next((axis for axis in header.axes if axis.kind == "tp"), None)
    return found is None or split is None or (found.count, found.split_dim) == (split.count, split.split_dim)


def _read_one(store: Store, key: str, target: ReadTarget | None) -> Any:
    axes = target.parallelism._checked() if target is not None and target.parallelism is not None else None
    if target is None or target.mode == "as_stored":
        return tensors.read(store, [key if axes is None else _part_key(key, axes)])[0]
    if target.mode == "full":
        return _whole(store, key, [axis for axis in axes or [] if axis.kind != "tp"])
    if axes is None:
        return None
    split = next((axis for axis in axes if axis.kind == "tp"), None)
    stored = tensors.read(store, [_part_key(key, axes)], lambda header: _cut_as(header, split))[0]
    if stored is not None or split is None:
        return stored
    whole = _whole(store, key, [axis for axis in axes if axis.kind != "tp"])
    parts = None if whole is None else tensors.split(whole, split.count, split.split_dim)
    return None if parts is None else parts[split.rank].contiguous()


def _copy_into(tensor: Any, address: int, size: int) -> Any:
    """The tensor as a view of the caller's memory, which gets header and elements; None if they do not fit."""
    import ctypes

    address, size = operator.index(address), operator.index(size)
    item = tensors.serialize(tensor) if tensor is not None else None
    if item is None or len(item.header) + item.length > size or not tensors.is_writable(address, len(item.header) + item.length):
        return None
    ctypes.memmove(address, item.header, len(item.header))
    ctypes.memmove(address + len(item.header), item.address, item.length)
    header = tensors.header_at(address, len(item.header) + item.length)
    return None if header is None else tensors.tensor_at(address, header)


# ---- the methods


def _make_writers(replace: bool) -> dict[str, Any]:
    verb = "upsert" if replace else "put"

    def one(self: Store, key: str, tensor: Any, parallelism: TensorParallelism | None = None, config: ReplicateConfig | None = None,
            writer_partition: Any = None) -> int:
        """Stores the part of a tensor that `parallelism` or `writer_partition` (an object with rank, size and split_dim) names; the
        whole without either. With one axis of tensor parallelism the part itself is given, otherwise the whole, which is cut here; every
        writer of a partition gives the whole. Returns 0 or a code; -600 where it cannot be cut into equal parts."""
        return _write(self, [key], [tensor], [parallelism], config, [writer_partition], replace)[0]

    def batch(self: Store, keys: Sequence[str], tensors_list: Sequence[Any], parallelisms: Sequence[TensorParallelism] | None = None,
              config: ReplicateConfig | None = None, writer_partitions: Sequence[Any] | None = None) -> list[int]:
        """The same for each key, in one go."""
        return _write(self, keys, tensors_list, parallelisms, config, writer_partitions, replace)

    def one_from(self: Store, key: str, buffer_ptr: int, size: int, parallelism: TensorParallelism | None = None,
                 config: ReplicateConfig | None = None, writer_partition: Any = None) -> int:
        """The same, of a tensor in memory as put_tensor_from() takes it."""
        return _write(self, [key], tensors.tensors_at([buffer_ptr], [size]), [parallelism], config, [writer_partition], replace)[0]

    def batch_from(self: Store, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                   parallelisms: Sequence[TensorParallelism] | None = None, config: ReplicateConfig | None = None,
                   writer_partitions: Sequence[Any] | None = None) -> list[int]:
        """The same for each key, in one go."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        return _write(self, keys, tensors.tensors_at(buffer_ptrs, sizes), parallelisms, config, writer_partitions, replace)

    named = {f"{verb}_tensor_with_parallelism": one, f"batch_{verb}_tensor_with_parallelism": batch,
             f"{verb}_tensor_with_parallelism_from": one_from, f"batch_{verb}_tensor_with_parallelism_from": batch_from}
    for name, method in named.items():
        method.__name__ = method.__qualname__ = name
    return named


def get_tensor_with_parallelism(self: Store, key: str, target: ReadTarget | None = None) -> Any:
    """The tensor that `target` names: as stored, one shard, or in full; None if it cannot be had."""
    return _read_one(self, key, target)


def batch_get_tensor_with_parallelism(self: Store, keys: Sequence[str], targets: Sequence[ReadTarget] | None = None) -> list[Any]:
    """get_tensor_with_parallelism() for each key."""
    wanted = _per_item(targets, len(keys))
    if wanted is None:
        return [INVALID_PARAMS] * len(keys)
    return [_read_one(self, key, target) for key, target in zip(keys, wanted)]


def get_tensor_with_parallelism_into(self: Store, key: str, buffer_ptr: int, size: int, target: ReadTarget | None = None) -> Any:
    """As get_tensor_with_parallelism(), as a view of the caller's memory; None if it does not fit."""
    return _copy_into(_read_one(self, key, target), buffer_ptr, size)


def batch_get_tensor_with_parallelism_into(self: Store, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                                           targets: Sequence[ReadTarget] | None = None) -> list[Any]:
    """get_tensor_with_parallelism_into() for each key."""
    wanted = _per_item(targets, len(keys))
    if wanted is None or not len(keys) == len(buffer_ptrs) == len(sizes):
        return [INVALID_PARAMS] * len(keys)
    return [_copy_into(_read_one(self, key, target), address, size)
            for key, target, address, size in zip(keys, wanted, buffer_ptrs, sizes)]


PARALLEL_METHODS = {
    **_make_writers(False),
    **_make_writers(True),
    **{method.__name__: method for method in (get_tensor_with_parallelism, batch_get_tensor_with_parallelism, get_tensor_with_parallelism_into,
                                              batch_get_tensor_with_parallelism_into)},
}
