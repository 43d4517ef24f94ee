# SPDX-License-Identifier: Apache-2.0
"""Where the blocks of a batch lie."""

import random

KiB, MiB = 1 << 10, 1 << 20


def offsets(size: int, batch: int, scatter: bool, seed: int) -> list[int]:
    """Side by side, or as a paged KV cache scatters them: in random order, none beside another."""
    if not scatter or batch == 1:
        return [i * size for i in range(batch)]
    order = list(range(batch))
    random.Random(seed).shuffle(order)
    return [2 * i * size for i in order]


def room(size: int, batch: int, scatter: bool) -> int:
    return size * batch * (2 if scatter and batch > 1 else 1)


def size_name(size: int) -> str:
    return f"{size // MiB} MiB" if size >= MiB else f"{size // KiB} KiB"
