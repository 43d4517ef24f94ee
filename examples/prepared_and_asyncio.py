# SPDX-License-Identifier: Apache-2.0
"""Many scattered blocks: prepared once and sent again and again, then from an event loop.

    python examples/prepared_and_asyncio.py
"""

import asyncio
import time

import numpy as np

from mooncake.engine import TransferEngine, TransferOpcode

BLOCKS, BLOCK_BYTES, ROUNDS = 1024, 16 << 10, 20


def start_engine(memory: np.ndarray) -> tuple[TransferEngine, str]:
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") != 0 or engine.register_memory(memory) != 0:
        raise SystemExit(engine.last_error())
    return engine, f"127.0.0.1:{engine.get_rpc_port()}"


def main() -> None:
    # Two engines in one process, to keep the example short; between processes nothing changes.
    source = np.random.default_rng().integers(0, 256, BLOCKS * BLOCK_BYTES, np.uint8)
    target = np.zeros_like(source)
    engine, _ = start_engine(source)
    peer, peer_name = start_engine(target)

    # Address lists may be numpy arrays: no Python object per entry.
    places = np.arange(BLOCKS) * BLOCK_BYTES
    local, remote = source.ctypes.data + places, target.ctypes.data + places[::-1]
    lengths = np.full(BLOCKS, BLOCK_BYTES)

    plan = engine.prepare(peer_name, local, remote, lengths)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        assert plan.write() == 0, engine.last_error()
    print(f"prepared: {ROUNDS * source.nbytes / (time.perf_counter() - start) / 1e9:.1f} GB/s")

    async def send_layers() -> list[int]:
        layers = np.array_split(np.arange(BLOCKS), 8)
        return await asyncio.gather(*(
            engine.transfer_async(peer_name, local[layer], remote[layer], lengths[layer], TransferOpcode.Write) for layer in layers))

    target[:] = 0
    assert asyncio.run(send_layers()) == [0] * 8, engine.last_error()
    assert np.array_equal(target.reshape(BLOCKS, -1)[::-1], source.reshape(BLOCKS, -1))
    print("asyncio: 8 layers sent and verified")


if __name__ == "__main__":
    main()
