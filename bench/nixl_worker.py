# SPDX-License-Identifier: Apache-2.0
"""The work of engine_worker.py done with NIXL over UCX: `target BYTES`, or `initiator BYTES METADATA ADDRESS`."""

import argparse
import ctypes
import gc
import mmap
import os
import time
from typing import Any, Callable

import children
import geometry
from nixl._api import nixl_agent, nixl_agent_config


class Initiator:
    def __init__(self, agent: nixl_agent, local: int, remote: int):
        self.agent, self.local, self.remote = agent, local, remote

    def measure(self, op: str, size: int, batch: int, seconds: float, scatter: bool = True,
                prepared: bool = False) -> dict[str, Any]:
        here = [(self.local + o, size, 0) for o in geometry.offsets(size, batch, scatter, 1)]
        there = [(self.remote + o, size, 0) for o in geometry.offsets(size, batch, scatter, 2)]
        call, release = self._prepared(op, here, there) if prepared else self._fresh(op, here, there)
        call()
        gc.disable()
        start = time.perf_counter_ns()
        durations = children.figures(call, seconds)
        elapsed = time.perf_counter_ns() - start
        gc.enable()
        release()
        return children.summary(durations, size * batch, elapsed)

    def _fresh(self, op: str, here: list, there: list) -> tuple[Callable[[], None], Callable[[], None]]:
        """Builds its lists in every call, as a connector with changing blocks does."""

        def call() -> None:
            ours = self.agent.get_xfer_descs(here, "DRAM")
            theirs = self.agent.get_xfer_descs(there, "DRAM")
            handle = self.agent.initialize_xfer(op.upper(), ours, theirs, "target")
            self._post(handle)
            self.agent.release_xfer_handle(handle)

        return call, lambda: None

    def _prepared(self, op: str, here: list, there: list) -> tuple[Callable[[], None], Callable[[], None]]:
        ours = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", here, mem_type="DRAM")
        theirs = self.agent.prep_xfer_dlist("target", there, mem_type="DRAM")
        indices = list(range(len(here)))
        handle = self.agent.make_prepped_xfer(op.upper(), ours, indices, theirs, indices)

        def release() -> None:
            self.agent.release_xfer_handle(handle)
            self.agent.release_dlist_handle(ours)
            self.agent.release_dlist_handle(theirs)

        return lambda: self._post(handle), release

    def _post(self, handle: Any) -> None:
        self.agent.transfer(handle)
        while (state := self.agent.check_xfer_state(handle)) != "DONE":
            if state == "ERR":
                raise RuntimeError("transfer failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["target", "initiator"])
    parser.add_argument("bytes", type=int)
    parser.add_argument("metadata", nargs="?")
    parser.add_argument("address", nargs="?", type=int)
    arguments = parser.parse_args()

    pages = mmap.mmap(-1, arguments.bytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.memset(address, 0x11, arguments.bytes)
    agent = nixl_agent(arguments.role, nixl_agent_config(backends=["UCX"], enable_prog_thread=True))
    agent.register_memory([(address, arguments.bytes, 0, "")], mem_type="DRAM")
    answers: dict[str, Callable[..., dict[str, Any]]] = {}
    if arguments.role == "initiator":
        agent.add_remote_agent(bytes.fromhex(arguments.metadata))
        answers["measure"] = Initiator(agent, address, arguments.address).measure
    hello = {"name": agent.get_agent_metadata().hex(), "address": address}
    children.serve(hello, lambda question: answers[question.pop("do")](**question))
    os._exit(0)  # its threads need not end in order


if __name__ == "__main__":
    main()
