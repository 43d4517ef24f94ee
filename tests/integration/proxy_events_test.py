# SPDX-License-Identifier: Apache-2.0
"""What engines publish about their caches reaches the proxy's index: a real ZeroMQ publisher, the proxy as a program."""

import os
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path

import msgpack
import pytest
import requests
import zmq

import mooncake

PROGRAM = Path(mooncake.__file__).parent / "bin" / "mooncake"
PATIENCE_S = 60
BLOCK = 4
NAME = "127.0.0.1:1"


class Publisher:
    """As vLLM's: topic, number, batch; and a replay socket with what it still has."""

    def __init__(self, port: int = 0) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self.endpoint = self._bind(self._pub, port)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self.replay_endpoint = self._bind(self._router, 0)
        self.kept: list[tuple[int, bytes]] = []
        self.next = 0
        self.replays = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve_replays)
        self._thread.start()

    @staticmethod
    def _bind(socket, port: int) -> str:
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1') if port == 0 else socket.bind(f'tcp://127.0.0.1:{port}') or port}"

    def wait_for_subscriber(self) -> None:
        assert self._pub.poll(PATIENCE_S * 1000), "nobody came"
        assert self._pub.recv() == b"\x01"

    def publish(self, *events, lost: bool = False) -> None:
        payload = msgpack.packb([time.time(), list(events), 0])
        self.kept.append((self.next, payload))
        if not lost:
            self._pub.send_multipart([b"kv", struct.pack(">Q", self.next), payload])
        self.next += 1

    def _serve_replays(self) -> None:
        while not self._over.is_set():
            if not self._router.poll(20):
                continue
            who, _, number = self._router.recv_multipart()
            self.replays += 1
            for known, payload in self.kept:
                if known >= struct.unpack(">Q", number)[0]:
                    self._router.send_multipart([who, b"", struct.pack(">Q", known), payload])
            self._router.send_multipart([who, b"", struct.pack(">q", -1), b""])

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._pub.close()
        self._router.close()
        self._context.term()


class Proxy:
    def __init__(self) -> None:
        self.process = subprocess.Popen([str(PROGRAM), "proxy", "--host=127.0.0.1", "--port=0", f"--block_tokens={BLOCK}", f"--prefill={NAME}",
                                         "--decode=127.0.0.1:2", "--probe_interval=0"],
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, "MC_LOG_LEVEL": "ERROR"})
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().split()[-1]}"

    def post(self, page: str, **body) -> requests.Response:
        return requests.post(f"{self.url}{page}", json=body, timeout=PATIENCE_S)

    def matched(self, tokens: list[int]) -> int:
        return self.post("/query", model="m", token_ids=tokens, block_size=BLOCK).json()["default"][NAME]["longest_matched"]

    def wait_for(self, tokens: list[int], count: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.matched(tokens) != count:
            assert time.monotonic() < end, (self.matched(tokens), count)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        self.process.stdout.close()


@pytest.fixture
def proxy():
    proxy = Proxy()
    yield proxy
    proxy.stop()


@pytest.fixture
def publisher():
    publisher = Publisher()
    yield publisher
    publisher.close()


def stored(hashes, parent, tokens):
    return ["BlockStored", hashes, parent, tokens, BLOCK, None, "GPU"]


def register(proxy: Proxy, publisher: Publisher, replay: bool = True):
    answer = proxy.post("/register", endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint if replay else "", type="vLLM", modelname="m",
                        instance_id=NAME, block_size=BLOCK, dp_rank=0)
    assert answer.status_code == 200, answer.text
    publisher.wait_for_subscriber()


TOKENS = list(range(1, 17))


def test_published_blocks_are_found_and_removed_ones_are_not(proxy, publisher):
    register(proxy, publisher)
    publisher.publish(stored([b"a", b"b"], None, TOKENS[:8]))
    publisher.publish(stored([b"c"], b"b", TOKENS[8:12]))
    proxy.wait_for(TOKENS, 12)
    assert proxy.matched(TOKENS[:6] + [0, 0]) == 4
    publisher.publish(["BlockRemoved", [b"c"], "GPU"])
    proxy.wait_for(TOKENS, 8)
    publisher.publish(["AllBlocksCleared"])
    proxy.wait_for(TOKENS, 0)


def test_what_was_missed_is_asked_for(proxy, publisher):
    publisher.publish(stored([b"a"], None, TOKENS[:4]), lost=True)  # before anybody listened
    register(proxy, publisher)
    publisher.publish(stored([b"b"], b"a", TOKENS[4:8]))
    proxy.wait_for(TOKENS, 8)
    publisher.publish(stored([b"c"], b"b", TOKENS[8:12]), lost=True)
    publisher.publish(stored([b"d"], b"c", TOKENS[12:16]))
    proxy.wait_for(TOKENS, 16)
    assert publisher.replays == 2


def test_a_gap_that_cannot_be_filled_forgets_that_instance(proxy, publisher):
    register(proxy, publisher, replay=False)
    publisher.publish(stored([b"a", b"b"], None, TOKENS[:8]))
    proxy.wait_for(TOKENS, 8)
    publisher.publish(["BlockRemoved", [b"a"], "GPU"], lost=True)
    publisher.publish(stored([b"x"], None, [7, 7, 7, 7]))
    proxy.wait_for([7, 7, 7, 7], 4)
    assert proxy.matched(TOKENS) == 0


def test_messages_that_are_gone_from_the_replay_count_as_lost(proxy, publisher):
    register(proxy, publisher)
    publisher.publish(stored([b"a", b"b"], None, TOKENS[:8]))
    proxy.wait_for(TOKENS, 8)
    publisher.publish(["BlockRemoved", [b"a"], "GPU"], lost=True)
    publisher.kept = publisher.kept[2:]
    publisher.publish(stored([b"x"], None, [7, 7, 7, 7]))
    proxy.wait_for([7, 7, 7, 7], 4)
    assert proxy.matched(TOKENS) == 0


def test_a_publisher_that_begins_anew_is_followed(proxy):
    first = Publisher()
    register(proxy, first)
    first.publish(stored([b"a"], None, TOKENS[:4]))
    first.publish(stored([b"b"], b"a", TOKENS[4:8]))
    proxy.wait_for(TOKENS, 8)
    port = int(first.endpoint.rsplit(":", 1)[1])
    first.close()
    second = Publisher(port)
    try:
        second.wait_for_subscriber()
        second.publish(stored([b"q"], None, [5, 5, 5, 5]))
        proxy.wait_for([5, 5, 5, 5], 4)
        assert proxy.matched(TOKENS) == 0
    finally:
        second.close()


def test_nonsense_costs_the_view_and_nothing_else(proxy, publisher):
    register(proxy, publisher)
    publisher.publish(stored([b"a"], None, TOKENS[:4]))
    proxy.wait_for(TOKENS, 4)
    publisher._pub.send_multipart([b"kv", struct.pack(">Q", 1), b"\xc1\xc1"])
    proxy.wait_for(TOKENS, 0)
    publisher.next = 2
    publisher.publish(stored([b"a"], None, TOKENS[:4]))
    proxy.wait_for(TOKENS, 4)
    assert proxy.post("/unregister", instance_id=NAME).status_code == 200
    proxy.wait_for(TOKENS, 0)
    assert proxy.post("/unregister", instance_id=NAME).status_code == 404


@pytest.mark.parametrize("change, status", [({"endpoint": "ipc:///x"}, 400), ({"endpoint": "tcp://*:1"}, 400), ({"block_size": 5}, 400), ({"instance_id": ""}, 400),
                                            ({"instance_id": "nobody"}, 404), ({"replay_endpoint": "x"}, 400)])
def test_registrations_without_sense_are_refused(proxy, change, status):
    good = {"endpoint": "tcp://127.0.0.1:9", "instance_id": NAME, "block_size": BLOCK, "modelname": "m"}
    assert proxy.post("/register", **{**good, **change}).status_code == status


def test_queries_without_sense_are_refused(proxy):
    for page, body in (("/query", {}), ("/query", {"token_ids": "x"}), ("/query", {"token_ids": [-1]}), ("/query", {"token_ids": [1], "block_size": 9}),
                       ("/query_by_hash", {"token_ids": [1]}), ("/query_by_hash", {"seq_hashes": [1.5]})):
        assert proxy.post(page, **body).status_code == 400, body
    assert proxy.post("/query_by_hash", seq_hashes=[1, 2]).json()["default"][NAME]["longest_matched"] == 0
