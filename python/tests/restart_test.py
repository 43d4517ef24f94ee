# SPDX-License-Identifier: Apache-2.0
"""A peer that restarts under its name: addresses of its former life are refused, once to everybody who uses them."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mooncake.engine import TransferEngine, TransferOpcode

SIZE = 1 << 16


class Restarts:
    """An engine that dies and comes back on the same port, each time with other contents at the same address."""

    def __init__(self) -> None:
        self.memory = np.zeros(SIZE, np.uint8)
        self.name = "127.0.0.1"
        self.start()
        self.name = f"127.0.0.1:{self.engine.get_rpc_port()}"

    def start(self) -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize(self.name, "P2PHANDSHAKE", "tcp", "") == 0, self.engine.last_error()
        assert self.engine.register_memory(self.memory.ctypes.data, SIZE) == 0

    def stop(self) -> None:
        self.engine.close()
        self.memory[:] = 0xEE


@pytest.fixture
def peer(monkeypatch):
    monkeypatch.setenv("MC_TRANSPORTS", "tcp")
    peer = Restarts()
    monkeypatch.setenv("MC_LEGACY_RPC_PORT_BINDING", "1")
    yield peer
    peer.engine.close()


@pytest.fixture
def ours(peer, monkeypatch):
    monkeypatch.delenv("MC_LEGACY_RPC_PORT_BINDING")
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    monkeypatch.setenv("MC_LEGACY_RPC_PORT_BINDING", "1")
    yield engine
    engine.close()


@pytest.fixture
def threads():
    """Two callers, each a thread of its own."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        yield one, other


def test_what_one_caller_was_told_is_no_news_for_another(peer, ours, threads):
    local = np.full(SIZE, 0x77, np.uint8)
    assert ours.register_memory(local.ctypes.data, SIZE) == 0

    def write() -> tuple[int, str]:
        while True:
            code = ours.transfer_sync_write(peer.name, local.ctypes.data, peer.memory.ctypes.data, SIZE)
            error = ours.last_error() if code else ""
            if "refused" not in error:   # it is remembered for a moment that nobody was there
                return code, error

    one, other = threads
    assert one.submit(write).result()[0] == 0
    assert other.submit(write).result()[0] == 0
    peer.stop()
    assert ours.transfer_sync_write(peer.name, local.ctypes.data, peer.memory.ctypes.data, SIZE) == -1
    peer.start()
    for caller in threads:
        code, error = caller.submit(write).result()
        assert code == -1
        assert "former life" in error
        assert set(peer.memory) == {0xEE}, "nothing was written with an old address"
        assert caller.submit(write).result() == (0, ""), "told once"
        peer.memory[:] = 0xEE


def test_who_asks_for_the_address_again_is_not_refused(peer, ours):
    local = np.full(SIZE, 0x77, np.uint8)
    assert ours.register_memory(local.ctypes.data, SIZE) == 0
    for _ in range(3):
        address = 0
        while address == 0:   # the connection of the former life may end the first question
            address = ours.get_first_buffer_address(peer.name)
        assert ours.transfer_sync_write(peer.name, local.ctypes.data, address, SIZE) == 0, ours.last_error()
        assert set(peer.memory) == {0x77}
        peer.stop()
        peer.start()


def cut_connections() -> None:
    """Ends every TCP connection of this process, in which both engines live."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    one.getpeername()
                    one.shutdown(socket.SHUT_RDWR)
        except OSError:  # gone meanwhile, or not connected
            continue


def test_an_event_loop_that_was_told_nothing_does_not_go_on_after_a_break(peer, ours, threads):
    local = np.full(SIZE, 0x77, np.uint8)
    assert ours.register_memory(local.ctypes.data, SIZE) == 0
    addresses = [local.ctypes.data], [peer.memory.ctypes.data], [SIZE]

    def write() -> int:
        return ours.batch_transfer_sync_write(peer.name, *addresses)

    async def main() -> None:
        other = threads[0]
        assert other.submit(write).result() == 0
        assert await ours.transfer_async(peer.name, *addresses, TransferOpcode.Write) == 0
        peer.stop()
        peer.start()
        while other.submit(write).result() != 0:   # it is told, and goes on
            pass
        peer.memory[:] = 0xEE
        cut_connections()
        while ours._is_connected(peer.name):
            await asyncio.sleep(0.01)
        code, error = -1, ""
        while code == -1 and "former life" not in error:   # the break may end the first one
            code = await ours.transfer_async(peer.name, *addresses, TransferOpcode.Write)
            error = ours.last_error()
        assert code == -1
        assert set(peer.memory) == {0xEE}
        assert await ours.transfer_async(peer.name, *addresses, TransferOpcode.Write) == 0, ours.last_error()

    asyncio.run(asyncio.wait_for(main(), 60))
