# SPDX-License-Identifier: Apache-2.0
"""One side of a transfer over mooncake.engine. `target BYTES`: lends memory. `initiator BYTES PEER ADDRESS`: moves blocks.

With --managed the memory comes from the engine, else from the program. Needs only what every mooncake package has, except for
`prepared`.
"""

import argparse
import ctypes
import gc
import itertools
import mmap
import os
import threading
import time
from typing import Any, Callable

import children
import geometry
from mooncake.engine import TransferEngine

HOST = "127.0.0.1"


class Memory:
    def __init__(self, engine: TransferEngine, size: int, managed: bool):
        self.size = size
        if managed:
            self.address = engine.allocate_managed_buffer(size)
            if not self.address:
                raise SystemExit(f"no managed buffer of {size} bytes")
        else:
            self._pages = mmap.mmap(-1, size)
            self._bytes = (ctypes.c_char * size).from_buffer(self._pages)
            self.address = ctypes.addressof(self._bytes)
            if engine.register_memory(self.address, size) != 0:
                raise SystemExit("cannot register memory")
        ctypes.memset(self.address, 0x11, size)


class Initiator:
    def __init__(self, engine: TransferEngine, memory: Memory, peer: str, remote: int):
        self.engine, self.memory, self.peer, self.remote = engine, memory, peer, remote

    def verify(self) -> dict[str, Any]:
        """Sends random blocks to scattered places and fetches them back."""
        size, batch = 16 * geometry.KiB, 64
        here = [self.memory.address + o for o in geometry.offsets(size, batch, True, 1)]
        there = [self.remote + o for o in geometry.offsets(size, batch, True, 2)]
        blocks = [os.urandom(size) for _ in range(batch)]
        for address, block in zip(here, blocks):
            ctypes.memmove(address, block, size)
        if self.engine.batch_transfer_sync_write(self.peer, here, there, [size] * batch) != 0:
            raise RuntimeError("write failed")
        for address in here:
            ctypes.memset(address, 0, size)
        if self.engine.batch_transfer_sync_read(self.peer, here, there, [size] * batch) != 0:
            raise RuntimeError("read failed")
        for address, block in zip(here, blocks):
            if ctypes.string_at(address, size) != block:
                raise RuntimeError("what came back is not what was sent")
        return {}

    def measure(self, op: str, size: int, batch: int, seconds: float, scatter: bool = True, prepared: bool = False,
                threads: int = 1, sets: int = 1) -> dict[str, Any]:
        """Each thread has blocks of its own; one thread alone takes `sets` of them in turn, as many bytes as `sets` threads would touch."""
        room = geometry.room(size, batch, scatter)
        sets = max(sets, threads)
        if room * sets > self.memory.size:
            raise ValueError(f"{room * sets} bytes needed")
        calls = [self._call(op, size, batch, scatter, prepared, i * room) for i in range(sets)]
        for call in calls:
            call()
        if threads == 1 and sets > 1:
            turns = itertools.cycle(calls)
            calls = [lambda: next(turns)()]
        durations: list[list[int]] = [[] for _ in calls]

        def work(i: int) -> None:
            durations[i] = children.figures(calls[i], seconds)

        gc.disable()
        start = time.perf_counter_ns()
        if threads == 1:
            work(0)
        else:
            workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        elapsed = time.perf_counter_ns() - start
        gc.enable()
        return children.summary([d for each in durations for d in each], size * batch, elapsed)

    def _call(self, op: str, size: int, batch: int, scatter: bool, prepared: bool, base: int) -> Callable[[], None]:
        here = [self.memory.address + base + o for o in geometry.offsets(size, batch, scatter, 1)]
        there = [self.remote + base + o for o in geometry.offsets(size, batch, scatter, 2)]
        if prepared:
            plan = self.engine.prepare(self.peer, here, there, [size] * batch)
            function, arguments = (plan.write if op == "write" else plan.read), ()
        elif batch == 1:
            function = self.engine.transfer_sync_write if op == "write" else self.engine.transfer_sync_read
            arguments = (self.peer, here[0], there[0], size)
        else:
            function = self.engine.batch_transfer_sync_write if op == "write" else self.engine.batch_transfer_sync_read
            arguments = (self.peer, here, there, [size] * batch)

        def call() -> None:
            if function(*arguments) != 0:
                raise RuntimeError(f"{op} of {batch} x {size} bytes failed")

        return call


def idle(seconds: float) -> dict[str, Any]:
    """The share of one core that this process uses when nothing is asked of it."""
    before = time.process_time()
    time.sleep(seconds)
    return {"cpu": (time.process_time() - before) / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["target", "initiator"])
    parser.add_argument("bytes", type=int)
    parser.add_argument("peer", nargs="?")
    parser.add_argument("address", nargs="?", type=int)
    parser.add_argument("--managed", action="store_true")
    arguments = parser.parse_args()

    engine = TransferEngine()
    if engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != 0:
        raise SystemExit("cannot initialize the engine")
    memory = Memory(engine, arguments.bytes, arguments.managed)
    answers: dict[str, Callable[..., dict[str, Any]]] = {"idle": idle}
    if arguments.role == "initiator":
        initiator = Initiator(engine, memory, arguments.peer, arguments.address)
        answers |= {"verify": initiator.verify, "measure": initiator.measure}
    hello = {"name": f"{HOST}:{engine.get_rpc_port()}", "address": memory.address}
    children.serve(hello, lambda question: answers[question.pop("do")](**question))
    os._exit(0)  # the other side may be gone already; nothing is worth waiting for


if __name__ == "__main__":
    main()
