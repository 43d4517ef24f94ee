# SPDX-License-Identifier: Apache-2.0
"""How much of the machine others used meanwhile: a measurement on a busy machine says little about the code."""

import os
import time
from typing import Iterable

TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1


def _busy_ticks() -> int:
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return user + nice + system + irq + softirq + steal


def _ticks_of(pid: int) -> int:
    """Of a process and of its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])


class Noise:
    """with Noise(pids) as noise: ...; then noise.share: 0 = the machine was ours, 1 = all cores worked for others."""

    def __init__(self, pids: Iterable[int]):
        self._pids = [*pids, os.getpid()]
        self.share = 0.0

    def _others(self) -> int:
        return _busy_ticks() - sum(map(_ticks_of, self._pids))

    def __enter__(self) -> "Noise":
        self._before, self._start = self._others(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed = time.monotonic() - self._start
        self.share = max(0.0, (self._others() - self._before) / (elapsed * TICKS * CORES))
