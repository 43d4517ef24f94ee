# SPDX-License-Identifier: Apache-2.0
"""Which bytes of which prefill rank make up the memory of which decode rank, and moving them.

Each rank describes its KV cache as regions (`regions_of_tensor()`), and tells its peers in whatever way they know each other (`describe()`, `rank_from()`).
`make_plan()` then says for one request who gets which bytes from whom, proves that every byte is written exactly once, or refuses with the reason. A `Flow`
carries out the part of one rank, layer by layer or all at once. See docs/kvplan.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Generator, Iterable, Mapping, Sequence

from ._asyncio import _outlive, _Port
from ._kvplan import (
    BlockTable,
    Pair,
    Peer,
    Plan,
    Rank,
    Region,
    ShardGrid,
    _Flow,
    _make_plan,
    _make_plan_of_writes,
    _regions_of_tensor,
    _shard_grid,
    _Step,
    head_cuts_for,
    heads_of_rank,
    sglang_stages,
    shard_bytes,
    vllm_stages,
)
from .engine import TransferEngine, TransferNotify

__all__ = [
    "BlockTable",
    "Flow",
    "Pair",
    "Peer",
    "Plan",
    "Rank",
    "Region",
    "ShardGrid",
    "Step",
    "describe",
    "head_cuts_for",
    "heads_of_rank",
    "make_plan",
    "make_plan_of_writes",
    "rank_from",
    "regions_of_tensor",
    "sglang_stages",
    "shard_bytes",
    "shard_grid",
    "vllm_stages",
]

_REGION_FIELDS = (
    "layer",
    "part",
    "base",
    "length",
    "blocks",
    "block_tokens",
    "block_stride",
    "token_stride",
    "head_stride",
    "cell_bytes",
    "first_head",
    "heads",
    "total_heads",
    "rows",
    "group",
)
_RANK_FIELDS = ("segment", "stripes", "stripe", "stripe_tokens")


def describe(rank: Rank) -> dict[str, Any]:
    """A rank as plain values, to be sent to others as JSON or msgpack."""
    regions = [{name: getattr(region, name) for name in _REGION_FIELDS} for region in rank.regions]
    return {**{name: getattr(rank, name) for name in _RANK_FIELDS}, "regions": regions}


def rank_from(values: Mapping[str, Any]) -> Rank:
    """What describe() made. Names that are not known are left alone: a newer version may say more."""
    regions = [Region(**{name: region[name] for name in _REGION_FIELDS if name in region}) for region in values["regions"]]
    return Rank(regions=regions, **{name: values[name] for name in _RANK_FIELDS if name in values})


def regions_of_tensor(
    tensor: Any,
    axes: Sequence[str],
    *,
    layers: Sequence[str],
    parts: Sequence[str] = ("kv",),
    first_head: int = 0,
    total_heads: int = 1,
    is_state: bool = False,
    group: int = 0,
) -> list[Region]:
    """Regions of a tensor: one for each layer and part.

    tensor: anything with `shape`, and strides: torch tensors (`data_ptr()`, `stride()`, `element_size()`) and NumPy arrays.
    axes: what its dimensions are, outermost first: "layer", "part", "block", "token", "head", "channel". Channels are innermost, without gaps.
    layers, parts: names by index along those axes; a tensor without the axis has one of them.
    is_state: tokens are the rows of a state (Mamba), blocks its slots.
    """
    shape = tuple(tensor.shape)
    if len(shape) != len(axes):
        raise ValueError(f"{len(axes)} axes are named, the tensor has {len(shape)}")
    if hasattr(tensor, "data_ptr"):
        element = tensor.element_size()
        base, strides = tensor.data_ptr(), [stride * element for stride in tensor.stride()]
    else:
        element = tensor.itemsize
        base, strides = tensor.__array_interface__["data"][0], list(tensor.strides)
    if any(stride < 0 for stride in strides):
        raise ValueError("a tensor that runs backwards has no regions")
    described = [(name, size, stride) for name, size, stride in zip(axes, shape, strides)]
    return _regions_of_tensor(base, element, described, list(layers), list(parts), first_head, total_heads, is_state, group)


_Tables = Sequence[Sequence["BlockTable | Sequence[int]"]]


def _tables(sides: _Tables) -> list[list[BlockTable]]:
    return [[table if isinstance(table, BlockTable) else BlockTable(list(table)) for table in rank] for rank in sides]


def make_plan(
    sources: Sequence[Rank],
    targets: Sequence[Rank],
    *,
    tokens: int,
    source_blocks: _Tables,
    target_blocks: _Tables,
    first_token: int = 0,
    seed: int = 0,
    only_targets: Iterable[int] = (),
    only_source: int | None = None,
) -> Plan:
    """Which bytes go where, for one request.

    source_blocks, target_blocks: for each rank its block tables, by group: BlockTable or a list of block numbers. Those of ranks that the plan does not concern
    may be empty.
    seed: spreads requests over ranks that hold the same; the same on both sides, for instance a hash of the request's id.
    only_targets, only_source: the plan of some ranks alone; what they choose is what all would have chosen.

    ValueError: the layouts contradict themselves or each other; the text names layer, head and token.
    """
    return _make_plan(
        list(sources), list(targets), tokens, _tables(source_blocks), _tables(target_blocks), first_token, seed, list(only_targets), only_source
    )


def shard_grid(stages: Sequence[tuple[Sequence[Region], int]], block_tokens: int) -> ShardGrid:
    """How blocks are cut in the store, so that any parallelism can read them. All who share the store must agree about it.

    stages: what is stored together, in the model's order: regions (of any rank; what counts is layer, part, the model's number of heads and the size of a
    cell) and into how many shards their heads are cut (head_cuts_for()). Pipelines are cut at the borders of stages only.
    """
    named = [([(region.layer, region.part, region.total_heads, region.cell_bytes) for region in regions], cuts) for regions, cuts in stages]
    return _shard_grid(named, block_tokens)


def make_plan_of_writes(
    ranks: Sequence[Rank],
    shards: Sequence[Rank],
    *,
    tokens: int,
    source_blocks: _Tables,
    target_blocks: _Tables,
    first_token: int = 0,
    seed: int = 0,
) -> Plan:
    """As make_plan(), with shards (ShardGrid.shards()) as targets: each has exactly one source. ValueError: the grid cuts elsewhere than the ranks do."""
    return _make_plan_of_writes(list(ranks), list(shards), tokens, _tables(source_blocks), _tables(target_blocks), first_token, seed)


class Step:
    """What a submit() started: can be waited for by threads and awaited by tasks. In a forked child it has failed."""

    def __init__(self, native: _Step, flow: Flow) -> None:
        self._native = native
        self._flow = flow  # without it, it would be cancelled

    def done(self) -> bool:
        return self._native.done()

    def wait(self, timeout: float | None = None) -> int:
        """The bytes that moved. RuntimeError: what failed; TimeoutError: not over, and it goes on."""
        if not self._native.wait(timeout):
            raise TimeoutError("the layers are still under way")
        return self._native.bytes()

    async def _await(self) -> int:
        loop = asyncio.get_running_loop()
        over = _Port.of(loop).heard(loop, self._native.tell)
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            # The caller may use the memory as soon as this arrives.
            self._flow.cancel()
            await _outlive(over)
            raise
        return self._native.bytes()

    def __await__(self) -> Generator[Any, None, int]:
        return self._await().__await__()


@dataclasses.dataclass(frozen=True)
class _Ends:
    """Which end of a plan a rank is."""

    rank: int
    writes: bool


class Flow:
    """The part of a plan that one rank carries out: a source writes, a target reads.

    engine: whose registered memory the rank's regions are.
    source, target: the number of this rank among the plan's sources, or targets; one of them.
    notify: told to each peer (name, message; see TransferEngine.get_notifies()) once everything between the two has moved, and not if anything failed.
    timeout: seconds to find out who the peers are.

    RuntimeError: a peer cannot be reached. The addresses are those of the peers that live now: one that restarts gets nothing, and the step fails.
    """

    def __init__(
        self,
        engine: TransferEngine,
        plan: Plan,
        *,
        source: int | None = None,
        target: int | None = None,
        notify: tuple[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        if (source is None) == (target is None):
            raise TypeError("either source or target says which rank this is")
        ends = _Ends(source, True) if source is not None else _Ends(target or 0, False)
        notification = TransferNotify(*notify) if notify is not None else None
        self._native = _Flow(engine.get_engine(), plan, ends.rank, ends.writes, notification, timeout)

    @property
    def peers(self) -> list[Peer]:
        """Whom bytes are moved with, and how many."""
        return self._native.peers

    @property
    def layers(self) -> list[str]:
        """The layers of this rank, also those that nobody gets from it."""
        return self._native.layers

    def submit(self, layer: str | None = None, *, after: Any = None) -> Step:
        """Starts one layer, or all that were not started. Returns at once.

        Once anything with a peer has failed nothing more begins with it, and the steps that need it fail likewise.
        after: a CUDA stream or event that has to come so far first, as in TransferEngine.
        RuntimeError: no such layer, it was started before, or the flow was cancelled.
        """
        return Step(self._native.submit("" if layer is None else layer, after), self)

    def cancel(self) -> None:
        """Ends what was started, without waiting; nothing more can be."""
        self._native.cancel()

    def close(self) -> None:
        """As cancel(); when it returns nothing moves any more."""
        self._native.close()

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
