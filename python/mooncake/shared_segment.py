# SPDX-License-Identifier: Apache-2.0
"""Tensors in host memory that the ranks of one host share.

    blocks = {"k": dict(count=layers, shape=(1024, 16, 128), dtype=torch.bfloat16)}
    segment = create_shared_segment("kv", blocks, world_size, rank, comm_group=group)
    layer_0 = segment.tensors("k")[0]  # the same memory in every rank

The i-th entries of all blocks lie together, each on pages of its own, in the order of the blocks' names.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping

from . import _shared_segment as _bytes

if TYPE_CHECKING:
    import torch

__all__ = ["SharedSegment", "SharedSegmentError", "create_shared_segment", "shared_segment_supported"]

_ALIGNMENT = 4096


class SharedSegmentError(RuntimeError):
    """A shared segment cannot be made, or has no such block."""


@dataclass
class _Block:
    count: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0  # of its first entry

    @property
    def entry_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class SharedSegment:
    """Made by create_shared_segment(). The memory lasts as long as this object or one of its tensors does."""

    def __init__(self, segment: _bytes.SharedSegment, blocks: dict[str, _Block], stride: int) -> None:
        self._segment, self._blocks, self._stride = segment, blocks, stride

    def tensors(self, block: str) -> list[torch.Tensor]:
        """One tensor for each entry of the block, without a copy."""
        import torch

        if block not in self._blocks:
            raise SharedSegmentError(f"there is no block {block!r} in this shared segment")
        found, made = self._blocks[block], []
        for index in range(found.count):
            memory = (ctypes.c_ubyte * found.entry_bytes).from_address(self.base_addr() + found.offset + index * self._stride)
            memory.owner = self._segment  # kept by the tensor's storage
            made.append(torch.frombuffer(memory, dtype=found.dtype).reshape(found.shape))
        return made

    def base_addr(self) -> int:
        return self._segment.base_addr()

    def total_size(self) -> int:
        return self._segment.size()


def shared_segment_supported(mmap: bool = True, host_register: bool = False) -> bool:
    return _bytes.SharedSegment.supported(mmap, host_register)


def create_shared_segment(name: str, blocks: Mapping[str, Mapping[str, Any]], world_size: int, rank_id: int, owner_rank: int = 0,
                          device_id: int | None = None, comm_group: Any = None, mmap: bool = True, host_register: bool = False, *,
                          tp_group: Any = None) -> SharedSegment:
    """Called by all ranks of the group, with the same arguments but for rank_id; all succeed or all raise SharedSegmentError.

    blocks: by name, dict(count, shape, dtype) of equal tensors.
    comm_group: a process group of torch, or an object with one in `cpu_group`; not needed for a world of one.
    tp_group: an older name of comm_group."""
    if comm_group is not None and tp_group is not None:
        raise SharedSegmentError("comm_group and tp_group are the same argument; only comm_group is to be given")
    group = comm_group if comm_group is not None else tp_group
    if world_size != 1 and group is None:
        raise SharedSegmentError("comm_group is needed in a world of more than one")
    if host_register and not mmap:
        raise SharedSegmentError("host_register needs mmap=True")
    layout, stride = _layout(blocks)
    declaration = f"{name}\0" + ";".join(f"{key}:{block.count}:{block.shape}:{block.dtype}" for key, block in layout.items())
    size = stride * max(block.count for block in layout.values())

    def everybody(step: Callable[[], Any]) -> list[Any]:
        """The results of a step in all ranks, or the error of the first that failed: nobody is left waiting."""
        try:
            outcome = (step(), "")
        except (RuntimeError, TypeError) as error:
            outcome = (None, str(error))
        outcomes = [outcome] if world_size == 1 else _all_gather(group, world_size, outcome)
        for rank, (_, error) in enumerate(outcomes):
            if error:
                raise SharedSegmentError(error if world_size == 1 else f"rank {rank}: {error}")
        return [result for result, _ in outcomes]

    made: list[_bytes.SharedSegment] = []

    def create() -> bytes:
        segment, blob = _bytes.SharedSegment.create(declaration, size, world_size, rank_id, owner_rank, device_id or 0, mmap, host_register)
        made.append(segment)
        return blob

    blobs = everybody(create)
    everybody(lambda: made[0].complete(blobs))
    return SharedSegment(made[0], layout, stride)


def _layout(blocks: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, _Block], int]:
    """The blocks in their order, and how far their entries are apart."""
    if not blocks:
        raise SharedSegmentError("a shared segment needs at least one block")
    layout: dict[str, _Block] = {}
    stride = 0
    for name in sorted(blocks):
        block = layout[name] = _parse(name, blocks[name])
        block.offset = stride
        stride += (block.entry_bytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    return layout, stride


def _parse(name: str, wanted: Mapping[str, Any]) -> _Block:
    try:
        block = _Block(int(wanted["count"]), tuple(int(extent) for extent in wanted["shape"]), wanted["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        raise SharedSegmentError(f"block {name!r} needs count, shape and dtype") from error
    if block.count <= 0:
        raise SharedSegmentError(f"block {name!r} needs a count above 0")
    if not block.shape or min(block.shape) <= 0:
        raise SharedSegmentError(f"block {name!r} needs a shape whose extents are above 0")
    if not hasattr(block.dtype, "itemsize"):
        raise TypeError(f"block {name!r}: dtype must be one of torch, not {type(block.dtype).__name__}")
    return block


def _all_gather(group: Any, world_size: int, item: Any) -> list[Any]:
    import torch.distributed

    items: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(items, item, group=getattr(group, "cpu_group", group))
    return items
