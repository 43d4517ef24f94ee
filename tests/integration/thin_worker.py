# SPDX-License-Identifier: Apache-2.0
"""A thin client as a process of its own: does what it reads from its standard input, a JSON list per line, and answers each with one."""

import ctypes
import hashlib
import json
import os
import sys
import threading
import time

from mooncake.store import MooncakeDistributedStore


def value_of(key: str, length: int) -> bytes:
    return (hashlib.sha256(key.encode()).digest() * (length // 32 + 1))[:length]


class Worker:
    def __init__(self, port: int, buffer_bytes: int, name: str) -> None:
        self.name = name
        tasks = len(os.listdir("/proc/self/task"))
        self.store = MooncakeDistributedStore()
        self.code = self.store.setup_dummy(0, buffer_bytes, f"127.0.0.1:{port}")
        self.new_threads = len(os.listdir("/proc/self/task")) - tasks
        self.memory, self.length = 0, 0

    def share(self, length: int) -> list[int]:
        """Memory that the node gets, all of its pages touched."""
        self.memory, self.length = self.store.alloc_from_mem_pool(length), length
        code = self.store.register_buffer(self.memory, length)
        ctypes.memset(self.memory, 0x5A, length)
        return [code, *self.store.are_buffers_mapped([self.memory])]

    def put(self, keys: list[str], length: int) -> list[int]:
        return [self.store.put(key, value_of(key, length)) for key in keys]

    def get(self, keys: list[str], length: int) -> list[bool]:
        return [self.store.get(key) == value_of(key, length) for key in keys]

    def get_into(self, keys: list[str], length: int) -> list[bool]:
        good = []
        for key in keys:
            ctypes.memset(self.memory, 0, length)
            good.append(self.store.get_into(key, self.memory, self.length) == length
                        and ctypes.string_at(self.memory, length) == value_of(key, length))
        return good

    def exist(self, keys: list[str]) -> list[int]:
        return [self.store.is_exist(key) for key in keys]

    def load(self, seconds: float, threads: int) -> dict[str, float]:
        """Writes and reads by both ways until the time is over; counts what came out."""
        seen = {"right": 0, "missed": 0, "refused": 0, "wrong": 0, "after": 0, "longest_s": 0.0}
        lock = threading.Lock()
        half, end = time.monotonic() + 0.75 * seconds, time.monotonic() + seconds
        part = self.length // threads

        def timed(what):
            began = time.monotonic()
            answer = what()
            with lock:
                seen["longest_s"] = max(seen["longest_s"], time.monotonic() - began)
            return answer

        def run(number: int) -> None:
            turn, at = 0, self.memory + number * part
            while time.monotonic() < end:
                key, length = f"{self.name}-{number}-{turn % 8}", 1000 + 500 * (turn % 8)
                turn += 1
                put = timed(lambda: self.store.upsert(key, value_of(key, length)))
                got = timed(lambda: self.store.get(key))
                size = timed(lambda: self.store.get_into(key, at, part))
                there = ctypes.string_at(at, size) if size > 0 else b""
                with lock:
                    for value in (got, there):
                        if value == value_of(key, length):
                            seen["right"] += 1
                            seen["after"] += time.monotonic() > half
                        elif value:
                            seen["wrong"] += 1
                        else:
                            seen["missed"] += 1
                    seen["refused"] += put != 0

        workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return seen


def main() -> None:
    worker = Worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    print(json.dumps([worker.code, worker.new_threads]), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(*arguments)), flush=True)
    worker.store.close()


if __name__ == "__main__":
    main()
