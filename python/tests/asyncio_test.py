# SPDX-License-Identifier: Apache-2.0
"""await engine.transfer_async(...)"""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helpers import PATIENCE_S, run_python
from mooncake import _asyncio
from mooncake.engine import TransferOpcode

READ, WRITE = TransferOpcode.Read, TransferOpcode.Write


def test_awaited_transfers_go_both_ways(pair, pattern):
    data = pattern(50_000)
    pair.local.memory[:50_000] = data
    blocks = [0, 20_000], [20_000, 30_000]

    async def main():
        local, remote = [pair.local.address + o for o in blocks[0]], [pair.peer.address + o for o in blocks[0]]
        assert await pair.engine.transfer_async(pair.peer.name, local, remote, blocks[1], WRITE) == 0
        pair.local.memory[:50_000] = 0
        assert await pair.engine.transfer_async(pair.peer.name, local, remote, blocks[1], READ) == 0

    asyncio.run(main())
    assert np.array_equal(pair.local.memory[:50_000], data)


def test_thousand_at_once_need_no_thread_each(pair):
    async def main():
        assert await pair.engine.transfer_async(pair.peer.name, [pair.local.address], [pair.peer.address], [1], WRITE) == 0
        before = threading.active_count()
        most = 0

        async def one(i):
            nonlocal most
            code = await pair.engine.transfer_async(pair.peer.name, [pair.local.address + i], [pair.peer.address + i], [1], WRITE)
            most = max(most, threading.active_count())
            return code

        assert await asyncio.gather(*(one(i) for i in range(1000))) == [0] * 1000
        assert most == before

    pair.local.memory[:1000] = 5
    asyncio.run(main())
    assert pair.peer.read(0, 1000) == b"\x05" * 1000


def test_failures_are_answers_with_a_text(local):
    async def main():
        assert await local.engine.transfer_async("127.0.0.1:1", [local.address], [local.address], [1], WRITE) == -1
        assert "127.0.0.1:1" in local.engine.last_error()
        assert await local.engine.transfer_async(local.name, [local.address], [4096], [1], WRITE) == -1
        assert await local.engine.transfer_async(local.name, [local.address], [], [1], WRITE) == -1
        assert await local.engine.transfer_async(local.name, [], [], [], READ) == 0
        assert await local.engine.transfer_async(local.name, [local.address], [local.address + 64], [1], WRITE) == 0

    asyncio.run(main())


def test_wrong_arguments_raise_where_they_are_awaited(local):
    async def main():
        with pytest.raises(TypeError):
            await local.engine.transfer_async(local.name, [-1], [local.address], [1], WRITE)
        with pytest.raises(ValueError):
            await local.engine.transfer_async(local.name, [1], [local.address], [1], 5)
        with pytest.raises(TypeError):
            await local.engine.transfer_async(local.name, [1], [local.address], [1])

    asyncio.run(main())


def test_objects_need_no_lengths(local, pattern):
    data = pattern(1000)

    async def main():
        assert await local.engine.transfer_async(local.name, [data], [local.address], None, WRITE) == 0

    asyncio.run(main())
    assert np.array_equal(local.memory[:1000], data)


@pytest.mark.parametrize("wait_for", [False, True])
def test_cancelled_task_has_stopped_its_transfer(stalling_pair, wait_for):
    pair = stalling_pair

    async def main():
        call = (pair.peer.name, [pair.local.address], [pair.peer.address])
        assert await pair.engine.transfer_async(*call, [16], WRITE) == 0
        pair.peer.pause()
        transfer = pair.engine.transfer_async(*call, [8 << 20], READ)
        if wait_for:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(transfer, 0.05)
        else:
            task = asyncio.create_task(transfer)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        pair.local.memory[:] = 77
        pair.peer.resume()
        assert await pair.engine.transfer_async(*call, [16], WRITE) == 0

    asyncio.run(main())
    assert np.all(pair.local.memory == 77)


@pytest.mark.parametrize("executor", ["busy", "shut down"])
def test_cancelling_needs_no_thread_of_the_loops_executor(stalling_pair, executor):
    pair = stalling_pair

    async def main(release):
        loop = asyncio.get_running_loop()
        if executor == "busy":
            loop.set_default_executor(ThreadPoolExecutor(1))
            loop.run_in_executor(None, release.wait)
        else:
            await loop.shutdown_default_executor()
        call = (pair.peer.name, [pair.local.address], [pair.peer.address])
        assert await pair.engine.transfer_async(*call, [16], WRITE) == 0
        pair.peer.pause()
        tasks = [asyncio.create_task(pair.engine.transfer_async(*call, [8 << 20], READ)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert all(task.cancelled() for task in tasks)
        pair.local.memory[:] = 77
        pair.peer.resume()
        assert await pair.engine.transfer_async(*call, [16], WRITE) == 0

    released = threading.Event()

    async def main_and_release():
        try:
            await main(released)
        finally:
            released.set()

    asyncio.run(main_and_release())
    assert np.all(pair.local.memory == 77)


def test_what_fails_behind_the_submit_stops_the_transfer(stalling_pair, monkeypatch):
    pair = stalling_pair

    def no_memory(*_):
        raise MemoryError

    async def main():
        call = (pair.peer.name, [pair.local.address], [pair.peer.address])
        assert await pair.engine.transfer_async(*call, [16], WRITE) == 0
        pair.peer.pause()
        with monkeypatch.context() as patch:
            patch.setattr(_asyncio._Port, "done", no_memory)
            with pytest.raises(MemoryError):
                await pair.engine.transfer_async(*call, [8 << 20], READ)
        pair.local.memory[:] = 77
        pair.peer.resume()
        assert await pair.engine.transfer_async(*call, [16], WRITE) == 0

    asyncio.run(main())
    assert np.all(pair.local.memory == 77)


NO_DESCRIPTORS = """
import asyncio, os, resource, signal, sys
import numpy as np
from mooncake import _asyncio  # now: later there is no descriptor to import it
from mooncake.engine import TransferEngine

name, address, process = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
engine, memory = TransferEngine(), np.zeros(8 << 20, np.uint8)
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
local = memory.ctypes.data
assert engine.register_memory(local, len(memory)) == 0
assert engine.transfer_sync_write(name, local, address, 16) == 0


async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    os.kill(process, signal.SIGSTOP)
    try:
        print("answered", await engine.transfer_async(name, [local], [address], [len(memory)], 0))
    except (OSError, RuntimeError) as error:
        print("raised", error)
    for descriptor in held:
        os.close(descriptor)
    memory[:] = 77
    os.kill(process, signal.SIGCONT)
    assert await engine.transfer_async(name, [local], [address], [16], 1) == 0


asyncio.run(main())
print("untouched", bool(np.all(memory == 77)))
engine.close()
"""


def test_a_loop_that_can_hear_of_nothing_starts_nothing(make_peer):
    env = {"MC_TRANSPORTS": "tcp"}
    peer = make_peer(8 << 20, env=env)
    done = run_python(NO_DESCRIPTORS, peer.name, str(peer.address), str(peer.process.pid), env=env)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("raised") and "Too many open files" in lines[0]
    assert lines[1] == "untouched True"


def test_a_peer_that_went_and_does_not_answer_holds_up_nobody_else_of_the_loop(make_local, make_peer, monkeypatch):
    monkeypatch.setenv("MC_TRANSPORTS", "tcp")
    local, peer = make_local(), make_peer()
    arguments = (peer.name, [local.address], [peer.address], [1], WRITE)

    async def main():
        assert await local.engine.transfer_async(*arguments) == 0
        assert local.engine._is_connected(peer.name)
        peer.kill()
        while local.engine._is_connected(peer.name):
            await asyncio.sleep(0.01)
        with socket.socket() as silent:  # takes connections and says nothing
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            silent.bind(("127.0.0.1", int(peer.name.rsplit(":", 1)[1])))
            silent.listen()
            transfer = asyncio.ensure_future(local.engine.transfer_async(*arguments))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not transfer.done()  # or it would have been waited for by us
        assert await transfer == -1

    asyncio.run(main())


def test_each_loop_has_its_own_ear(local):
    """Loops in several threads and one after another."""
    async def main():
        return await asyncio.gather(*(local.engine.transfer_async(local.name, [local.address], [local.address + 64], [8], WRITE) for _ in range(50)))

    results = []
    threads = [threading.Thread(target=lambda: results.extend(asyncio.run(main()) + asyncio.run(main()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 400


def test_closing_the_engine_ends_the_wait(stalling_pair):
    pair = stalling_pair

    async def main():
        call = (pair.peer.name, [pair.local.address], [pair.peer.address])
        assert await pair.engine.transfer_async(*call, [16], WRITE) == 0
        pair.peer.pause()
        task = asyncio.create_task(pair.engine.transfer_async(*call, [8 << 20], WRITE))
        await asyncio.sleep(0)
        await asyncio.to_thread(pair.engine.close)
        assert await task == -1
        assert await pair.engine.transfer_async(*call, [16], WRITE) == -1

    asyncio.run(main())


def test_not_initialized_is_minus_one():
    from mooncake.engine import TransferEngine

    async def main():
        return await TransferEngine().transfer_async("127.0.0.1:1", [1], [1], [1], WRITE)

    assert asyncio.run(main()) == -1
