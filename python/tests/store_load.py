# SPDX-License-Identifier: Apache-2.0
"""A process that puts, reads and probes for a while, then prints one JSON line: how often each call ended how. Driven by store_load_test.py."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter

from store_helpers import MiB, open_store, random_bytes

BATCH = 16
NOISE = random_bytes(2 * MiB, 99)


def value_of(key: str) -> bytes:
    """Every process knows what must be under a key, and no two keys have the same."""
    dice = random.Random(key)
    length, start = dice.randrange(1, 256 << 10), dice.randrange(MiB)
    return key.encode() + NOISE[start:start + length]


class Load:
    def __init__(self, setup: dict) -> None:
        self.setup, self.ledger = setup, Counter()
        self.dice = random.Random(setup["seed"])
        self.store = open_store(setup["master"], segment=setup["segment"])

    def count(self, call: str, outcome: object, times: int = 1) -> None:
        self.ledger[f"{call} {outcome}"] += times

    def some_keys(self) -> list[str]:
        return [f"k{number}" for number in self.dice.sample(range(self.setup["keys"]), BATCH)]

    def put(self) -> None:
        for key in self.some_keys()[:4]:
            self.count("put", self.store.put(key, value_of(key)))
        keys = self.some_keys()
        self.count("put", self.store.put_batch(keys, [value_of(key) for key in keys]), len(keys))

    def get(self) -> None:
        keys = self.some_keys()
        for key, value in zip(keys, self.store.get_batch(keys)):
            self.count("get", "miss" if value == b"" else "value" if value == value_of(key) else "other bytes")

    def probe(self) -> None:
        for found in self.store.batch_is_exist([f"k{number}" for number in range(self.setup["keys"])]):
            self.count("exist", found)

    def run(self) -> None:
        end = time.monotonic() + self.setup["seconds"]
        while time.monotonic() < end:
            for call in self.setup["calls"]:
                getattr(self, call)()
        print(json.dumps(self.ledger), flush=True)
        sys.stdin.read()  # what we lend stays until everybody is ready
        assert self.store.close() == 0


if __name__ == "__main__":
    load = Load(json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    sys.stdin.readline()
    load.run()
