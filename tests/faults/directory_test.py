# SPDX-License-Identifier: Apache-2.0
"""The metadata server is down at the start, or goes away later."""
import socket
import subprocess
import sys

import pytest
from death_test import MIB, retry

BIND = {"MC_TCP_BIND_ADDRESS": "127.0.0.1"}


class MetadataServer:
    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/metadata"
        self.process = None

    def start(self):
        self.process = subprocess.Popen([sys.executable, "-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", str(self.port)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:  # until it answers; pytest bounds the time of a test
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                assert self.process.poll() is None

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def metadata():
    server = MetadataServer()
    yield server
    server.stop()


def test_a_directory_that_is_down_fails_initialize_soon_and_clearly(spawn, metadata):
    ours = spawn(**BIND)
    result = ours.ask("init", host="node-a:1", metadata=metadata.url)
    assert result["rc"] == -1
    assert str(metadata.port) in result["error"], result
    metadata.start()
    assert ours.ask("init", host="node-a:1", metadata=metadata.url)["rc"] == 0, "a new object works once the server is up"


def test_peers_that_know_each_other_need_no_directory_any_more(spawn, metadata):
    metadata.start()
    ours, target, late = spawn(**BIND), spawn(**BIND), spawn(**BIND)
    _, remote = target.engine(MIB, host="node-b:1", metadata=metadata.url)
    _, local = ours.engine(MIB, host="node-a:1", metadata=metadata.url, value=7)
    late.engine(MIB, host="node-c:1", metadata=metadata.url)
    assert ours.ask("transfer", op="write", peer="node-b:1", local=local, remote=remote, size=MIB)["rc"] == 0
    metadata.stop()
    assert ours.ask("transfer", op="read", peer="node-b:1", local=local, remote=remote, size=MIB)["rc"] == 0
    unknown = ours.ask("transfer", op="write", peer="node-c:1", local=local, remote=remote, size=MIB)
    assert unknown["rc"] == -1 and "node-c:1" in unknown["error"] and str(metadata.port) in unknown["error"], unknown
    assert unknown["seconds"] < 10


def test_a_crashed_process_restarts_under_its_name(spawn, metadata):
    metadata.start()
    ours, target = spawn(**BIND), spawn(**BIND)
    _, remote = target.engine(MIB, host="node-b:1", metadata=metadata.url)
    _, local = ours.engine(MIB, host="node-a:1", metadata=metadata.url, value=7)
    assert ours.ask("transfer", op="write", peer="node-b:1", local=local, remote=remote, size=MIB)["rc"] == 0
    for value in (1, 2, 3):
        target.kill()
        target = spawn(**BIND)
        _, remote = target.engine(MIB, host="node-b:1", metadata=metadata.url)
        ours.ask("fill", addr=local, size=MIB, value=value)
        assert retry(ours, op="write", peer="node-b:1", local=local, remote=remote, size=MIB)["rc"] == 0
        assert target.ask("values", addr=remote, size=MIB)["values"] == [value]
