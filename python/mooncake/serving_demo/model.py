# SPDX-License-Identifier: Apache-2.0
"""A transformer that is small enough for any CPU and whose every output depends on every byte of its KV cache. Weights are random, but always the same.

Ranks of a tensor parallelism are objects of one process here: each has its own memory for its own heads. Heads are added up in the order of their numbers,
so that the result does not depend on how they are shared out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .. import kvplan


@dataclass(frozen=True)
class Shape:
    layers: int = 4
    hidden: int = 64
    query_heads: int = 8
    heads: int = 4
    channels: int = 8
    vocabulary: int = 256
    positions: int = 2048


SHAPE = Shape()


class Model:
    def __init__(self, shape: Shape = SHAPE, seed: int = 1) -> None:
        self.shape = shape
        random = np.random.default_rng(seed)
        group = shape.query_heads // shape.heads

        def weights(*size: int) -> np.ndarray:
            return random.standard_normal(size) * np.sqrt(3.0 / size[-2])

        # Attention has to outweigh the token itself, or the text would not depend on what was said before.
        self.embedding = random.standard_normal((shape.vocabulary, shape.hidden)) * 0.5
        self.position = random.standard_normal((shape.positions, shape.hidden)) * 0.5
        self.output = weights(shape.hidden, shape.vocabulary)
        self.layers = [
            {
                "q": weights(shape.heads, shape.hidden, group * shape.channels),
                "k": weights(shape.heads, shape.hidden, shape.channels),
                "v": weights(shape.heads, shape.hidden, shape.channels),
                "o": weights(shape.heads, group * shape.channels, shape.hidden),
                "up": weights(shape.hidden, 2 * shape.hidden),
                "down": weights(2 * shape.hidden, shape.hidden),
            }
            for _ in range(shape.layers)
        ]
        self.names = [f"model.layers.{number}.attn" for number in range(shape.layers)]

    def forward(self, tokens: Sequence[int], start: int, ranks: Sequence[Cache], table: Sequence[int]) -> Iterator[np.ndarray | None]:
        """Computes tokens that stand at `start` and later; the cache has those before. Yields after each layer, and in the end the logits of the last token."""
        x = self.embedding[list(tokens)] + self.position[start : start + len(tokens)]
        for number in range(self.shape.layers):
            x = x + self._attention(number, _normal(x), start, ranks, table)
            layer = self.layers[number]
            x = x + np.maximum(_normal(x) @ layer["up"], 0) @ layer["down"]
            yield None
        yield _normal(x[-1:])[0] @ self.output

    def _attention(self, number: int, x: np.ndarray, start: int, ranks: Sequence[Cache], table: Sequence[int]) -> np.ndarray:
        shape, layer = self.shape, self.layers[number]
        count, group = len(x), shape.query_heads // shape.heads
        end = start + count
        mask = np.arange(end)[None, :] > np.arange(start, end)[:, None]
        by_head: dict[int, np.ndarray] = {}
        for rank in ranks:
            for head in range(rank.first, rank.first + rank.count):
                rank.write(number, head, table, start, x @ layer["k"][head], x @ layer["v"][head])
                if head in by_head:
                    continue  # another rank has it as well
                keys, values = rank.read(number, head, table, end)
                queries = (x @ layer["q"][head]).reshape(count, group, shape.channels)
                scores = np.einsum("tgc,nc->gtn", queries, keys) / np.sqrt(shape.channels)
                scores[:, mask] = -np.inf
                scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
                mixed = np.einsum("gtn,nc->tgc", scores / scores.sum(axis=-1, keepdims=True), values)
                by_head[head] = mixed.reshape(count, -1) @ layer["o"][head]
        return sum(by_head[head] for head in range(shape.heads))  # type: ignore[return-value]

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """What a single process without any of this makes of it."""
        shape = self.shape
        blocks = -(-(len(prompt) + count) // 16)
        cache = Cache(shape, self.names, blocks, 16, tp_size=1, tp_rank=0)
        made: list[int] = []
        tokens, start = list(prompt), 0
        while len(made) < count:
            *_, logits = self.forward(tokens, start, [cache], range(blocks))
            start += len(tokens)
            tokens = [int(np.argmax(logits))]
            made += tokens
        return made


def _normal(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


class Cache:
    """The paged KV cache of one rank: for each layer K and V, blocks, tokens, heads, channels, as in vLLM."""

    def __init__(self, shape: Shape, names: Sequence[str], blocks: int, block_tokens: int, *, tp_size: int, tp_rank: int) -> None:
        self.shape, self.block_tokens = shape, block_tokens
        self.first, self.count = kvplan.heads_of_rank(shape.heads, tp_size, tp_rank)
        # What was never written must not pass for zeros.
        self.layers = {
            name: np.full((2, blocks, block_tokens, self.count, shape.channels), np.nan, dtype=np.float32) for name in names
        }
        self._by_number = list(self.layers.values())

    def regions(self) -> list[kvplan.Region]:
        return [
            region
            for name, memory in self.layers.items()
            for region in kvplan.regions_of_tensor(
                memory, ("part", "block", "token", "head", "channel"), layers=[name], parts=("k", "v"), first_head=self.first,
                total_heads=self.shape.heads)
        ]

    def _places(self, table: Sequence[int], start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.arange(start, end)
        return np.asarray(table)[tokens // self.block_tokens], tokens % self.block_tokens

    def write(self, layer: int, head: int, table: Sequence[int], start: int, keys: np.ndarray, values: np.ndarray) -> None:
        blocks, slots = self._places(table, start, start + len(keys))
        self._by_number[layer][0, blocks, slots, head - self.first] = keys
        self._by_number[layer][1, blocks, slots, head - self.first] = values

    def read(self, layer: int, head: int, table: Sequence[int], end: int) -> tuple[np.ndarray, np.ndarray]:
        blocks, slots = self._places(table, 0, end)
        both = self._by_number[layer][:, blocks, slots, head - self.first].astype(np.float64)
        return both[0], both[1]
