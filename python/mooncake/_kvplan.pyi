# SPDX-License-Identifier: Apache-2.0
from typing import Any, Sequence

from .engine import TransferNotify, _CompletionPort

class Region:
    """Cells of one part of one layer: that of (block, slot, head) lies at
    `base + block * block_stride + slot * token_stride + (head - first_head) * head_stride` and has `cell_bytes` bytes."""

    def __init__(
        self, *, layer: str, part: str = "kv", base: int, length: int, blocks: int, block_tokens: int, block_stride: int, token_stride: int,
        head_stride: int, cell_bytes: int, first_head: int = 0, heads: int = 1, total_heads: int = 1, rows: int = 0, group: int = 0,
    ) -> None: ...
    layer: str
    part: str
    base: int
    length: int
    blocks: int
    block_tokens: int
    block_stride: int
    token_stride: int
    head_stride: int
    cell_bytes: int
    first_head: int
    heads: int
    total_heads: int
    rows: int
    group: int

class Rank:
    """Where one process of a side keeps its share."""

    def __init__(self, segment: str, regions: Sequence[Region], *, stripes: int = 1, stripe: int = 0, stripe_tokens: int = 1) -> None: ...
    segment: str
    regions: list[Region]
    stripes: int
    stripe: int
    stripe_tokens: int

class BlockTable:
    """The blocks of one request in one group of a rank, in the order of its tokens."""

    def __init__(self, blocks: Sequence[int], *, first_token: int = 0, kept_from: int = 0) -> None: ...
    blocks: list[int]
    first_token: int
    kept_from: int

class Pair:
    """What one source sends to one target."""

    source: int
    target: int
    bytes: int

class Plan:
    """Which bytes go where."""

    sources: list[Rank]
    targets: list[Rank]
    pairs: list[Pair]
    sources_of: list[int]
    targets_of: list[int]
    def pieces(self, pair: int, layer: str = "") -> tuple[list[int], list[int], list[int]]: ...

class Peer:
    """Whom a flow moves bytes with."""

    segment: str
    rank: int
    bytes: int
    layers: int

class _Step:
    def done(self) -> bool: ...
    def tell(self, port: _CompletionPort, token: int) -> None: ...
    def wait(self, timeout: float | None) -> bool: ...
    def bytes(self) -> int: ...

class _Flow:
    def __init__(self, engine: Any, plan: Plan, rank: int, writes: bool, notification: TransferNotify | None, timeout: float) -> None: ...
    def submit(self, layer: str, after: Any) -> _Step: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
    peers: list[Peer]
    layers: list[str]

class ShardGrid:
    """How stored blocks are cut into shards."""

    block_tokens: int
    def shards(self, key: str) -> list[Rank]: ...
    def table(self, number: int) -> list[BlockTable]: ...

def shard_bytes(shard: Rank) -> int: ...
def head_cuts_for(total_heads: int, tensor_parallelisms: Sequence[int]) -> int: ...
def _shard_grid(stages: list[tuple[list[tuple[str, str, int, int]], int]], block_tokens: int) -> ShardGrid: ...
def _make_plan_of_writes(
    ranks: list[Rank], shards: list[Rank], tokens: int, source_blocks: list[list[BlockTable]], target_blocks: list[list[BlockTable]],
    first_token: int, seed: int,
) -> Plan: ...
def heads_of_rank(total_heads: int, ranks: int, rank: int) -> tuple[int, int]: ...
def vllm_stages(layers: int, stages: int) -> list[int]: ...
def sglang_stages(layers: int, stages: int) -> list[int]: ...
def _make_plan(
    sources: list[Rank], targets: list[Rank], tokens: int, source_blocks: list[list[BlockTable]], target_blocks: list[list[BlockTable]],
    first_token: int, seed: int, only_targets: list[int], only_source: int | None,
) -> Plan: ...
def _regions_of_tensor(
    base: int, element_bytes: int, axes: list[tuple[str, int, int]], layers: list[str], parts: list[str], first_head: int, total_heads: int,
    is_state: bool, group: int,
) -> list[Region]: ...
