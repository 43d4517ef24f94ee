# SPDX-License-Identifier: Apache-2.0
"""The engine as the serving frameworks use it: their exact calls, their error handling, and what happens around restarts."""

import concurrent.futures
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from helpers import PATIENCE_S, Peer
from mooncake.engine import TransferEngine


def initialize(host: str = "127.0.0.1", metadata: str = "P2PHANDSHAKE", protocol: str = "rdma") -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize(host, metadata, protocol, "") == 0, engine.last_error()
    return engine


# ---- peer to peer


def test_paged_cache_is_pushed_from_a_pool_of_threads(peer, pattern):
    """One engine, storages registered in one call, ten sender threads, lists of ints per request."""
    with initialize() as engine:
        layers = [pattern(64 << 10, seed) for seed in range(8)]
        assert engine.batch_register_memory([layer.ctypes.data for layer in layers], [layer.nbytes for layer in layers]) == 0
        page = 4096

        def send(request: int) -> int:
            source = [layer.ctypes.data + request * page for layer in layers]
            target = [peer.address + (i * 16 + request) * page for i in range(len(layers))]
            return engine.batch_transfer_sync_write(peer.name, source, target, [page] * len(layers))

        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            assert list(pool.map(send, range(16))) == [0] * 16
        assert peer.read(0, 8 * 64 << 10) == b"".join(layer.tobytes() for layer in layers)
        assert engine.batch_unregister_memory([layer.ctypes.data for layer in layers]) == 0


def test_weights_are_pulled_by_address(peer, pattern):
    """A fresh object per attempt, registration asserted, one large read per tensor."""
    data = pattern(peer.size, 3)
    peer.write(0, data.tobytes())
    with initialize() as engine:
        bucket = np.zeros(peer.size, np.uint8)
        assert engine.batch_register_memory([bucket.ctypes.data], [bucket.nbytes]) == 0
        half = peer.size // 2
        assert engine.batch_transfer_sync_read(peer.name, [bucket.ctypes.data, bucket.ctypes.data + half],
                                               [peer.address, peer.address + half], [half, half]) == 0
        assert np.array_equal(bucket, data)
        assert engine.batch_unregister_memory([bucket.ctypes.data]) == 0


def test_failed_session_is_probed_until_it_is_back(make_peer):
    with initialize() as engine:
        memory = np.full(4096, 7, np.uint8)
        first = make_peer()
        assert engine.transfer_sync_write(first.name, memory.ctypes.data, first.address, 4096) == 0
        assert engine.send_probe(first.name) == 0
        first.kill()
        started = time.monotonic()
        assert engine.batch_transfer_sync_write(first.name, [memory.ctypes.data], [first.address], [4096]) < 0
        assert engine.send_probe(first.name) != 0
        assert time.monotonic() - started < PATIENCE_S
        second = make_peer()  # elsewhere, as a restarted server
        assert engine.send_probe(second.name) == 0
        assert engine.transfer_sync_write(second.name, memory.ctypes.data, second.address, 4096) == 0
        assert second.read(0, 4096) == memory.tobytes()


@pytest.mark.parametrize("env", [{}, {"MC_TRANSPORTS": "tcp"}])
def test_peer_restarted_on_the_same_port_is_found_again(make_peer, monkeypatch, env):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    memory = np.arange(4096, dtype=np.uint8)
    first = make_peer(env=env)
    with initialize() as engine:
        assert engine.transfer_sync_write(first.name, memory.ctypes.data, first.address, 4096) == 0
        first.kill()
        second = make_peer(env={**env, "MC_LEGACY_RPC_PORT_BINDING": "1"}, host=first.name)
        assert second.name == first.name
        codes = [engine.transfer_sync_write(second.name, memory.ctypes.data, second.address, 4096) for _ in range(2)]
        assert 0 in codes, engine.last_error()  # the first call may report the loss of the old one
        assert second.read(0, 4096) == memory.tobytes()


def test_unreachable_peer_does_not_hold_up_the_others(local, peer):
    """A host that never answers: one that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as mute, concurrent.futures.ThreadPoolExecutor(1) as pool:
        dead = pool.submit(local.engine.transfer_sync_write, f"127.0.0.1:{mute.getsockname()[1]}", local.address, 4096, 16)
        for _ in range(100):
            assert local.engine.transfer_sync_write(peer.name, local.address, peer.address, 16) == 0
        assert dead.result(PATIENCE_S) == -1


def test_probe_of_a_dead_peer_takes_seconds_at_most(local):
    started = time.monotonic()
    assert local.engine.send_probe("127.0.0.1:1") == -102
    assert local.engine.send_probe("no-such-host.invalid:15000") == -101
    assert time.monotonic() - started < PATIENCE_S


def test_ipv6_peer(make_peer):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    peer = make_peer(host="::1", env={"MC_TRANSPORTS": "tcp"})
    with initialize("::1") as engine:
        assert engine.transfer_sync_write(peer.name, b"six", peer.address) == 0
        assert peer.read(0, 3) == b"six"


def test_engine_on_every_address_is_read_by_a_peer_that_polls():
    """Listens on the wildcard and advertises one address; reads are submitted, then asked about until they are over."""
    with initialize("0.0.0.0", protocol="tcp") as server, initialize("0.0.0.0", protocol="tcp") as client:
        cache, local = np.arange(1 << 20, dtype=np.uint32).view(np.uint8), np.zeros(4 << 20, np.uint8)
        assert server.register_memory(cache.ctypes.data, cache.nbytes) == 0
        assert client.register_memory(local.ctypes.data, local.nbytes) == 0
        session, parts = f"127.0.0.1:{server.get_rpc_port()}", [(0, 4096, 1 << 20), (2 << 20, 0, 1 << 20), (3 << 20, 77, 12345)]
        batch = client.batch_transfer_async_read(session, [local.ctypes.data + here for here, _, _ in parts],
                                                 [cache.ctypes.data + there for _, there, _ in parts], [length for _, _, length in parts])
        assert 0 < batch < 1 << 63
        deadline = time.monotonic() + PATIENCE_S
        while (status := client.transfer_check_status(batch)) == 0:
            assert time.monotonic() < deadline
        assert status == 1
        assert all(np.array_equal(local[here:here + length], cache[there:there + length]) for here, there, length in parts)
        assert client.unregister_memory(local.ctypes.data) == 0


# ---- with a metadata server


@pytest.fixture
def metadata_server():
    server = subprocess.Popen([sys.executable, "-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", "0"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            found = re.search(r"listens on 127\.0\.0\.1:(\d+)", line)
            if found:
                yield f"http://127.0.0.1:{found[1]}/metadata"
                break
        else:
            pytest.fail("the metadata server did not start")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE_S)


def test_two_processes_meet_in_the_http_directory(metadata_server, make_peer):
    peer = make_peer(host="127.0.0.1:12345", metadata=metadata_server)
    with initialize("127.0.0.1:12346", metadata_server) as engine:
        memory = np.full(4096, 9, np.uint8)
        assert engine.get_first_buffer_address("127.0.0.1:12345") == peer.address
        assert engine.transfer_sync_write("127.0.0.1:12345", memory.ctypes.data, peer.address, 4096) == 0
        assert peer.read(0, 4096) == memory.tobytes()
        assert engine.send_probe("127.0.0.1:12345") == 0
        assert engine.send_probe("127.0.0.1:54321") == -200
        assert engine.transfer_sync_write("127.0.0.1:54321", memory.ctypes.data, peer.address, 4096) == -1


def test_name_is_free_again_after_a_clean_end(metadata_server, make_peer):
    make_peer(host="node-a", metadata=metadata_server, env={"MC_TCP_BIND_ADDRESS": "127.0.0.1"}).close()
    make_peer(host="node-a", metadata=metadata_server, env={"MC_TCP_BIND_ADDRESS": "127.0.0.1"})


def test_restart_after_a_crash_takes_the_name_over(metadata_server, make_peer):
    env = {"MC_TCP_BIND_ADDRESS": "127.0.0.1"}
    first = make_peer(host="node-a", metadata=metadata_server, env=env)
    with initialize("127.0.0.1:1", metadata_server) as engine:
        assert engine.transfer_sync_write("node-a", b"one", first.address) == 0
        first.kill()
        second = make_peer(host="node-a", metadata=metadata_server, env=env)
        codes = [engine.transfer_sync_write("node-a", b"two", second.address) for _ in range(2)]
        assert 0 in codes, engine.last_error()
        assert second.read(0, 3) == b"two"
