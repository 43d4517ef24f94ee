# SPDX-License-Identifier: Apache-2.0
"""Two processes: one lends memory, the other writes into it.

    python examples/write_to_peer.py
"""

import subprocess
import sys

import numpy as np

from mooncake.engine import TransferEngine

HOST = "127.0.0.1"  # between machines: an address the other one can reach


def start_engine() -> TransferEngine:
    engine = TransferEngine()
    if engine.initialize(HOST, "P2PHANDSHAKE", "rdma", "") != 0:
        raise SystemExit(engine.last_error())
    return engine


def lend() -> None:
    """Registers memory, tells where it is, and waits for a word."""
    engine = start_engine()
    memory = np.zeros(1 << 20, np.uint8)
    assert engine.register_memory(memory) == 0
    print(f"{HOST}:{engine.get_rpc_port()}", memory.ctypes.data, flush=True)
    sys.stdin.readline()
    print("received:", memory[:5].tobytes().decode(), flush=True)


def main() -> None:
    lender = subprocess.Popen([sys.executable, __file__, "lend"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    name, address = lender.stdout.readline().split()

    engine = start_engine()
    if engine.transfer_sync_write(name, b"hello", int(address)) != 0:
        raise SystemExit(engine.last_error())

    print(lender.communicate("done\n")[0], end="")


if __name__ == "__main__":
    lend() if sys.argv[1:] == ["lend"] else main()
