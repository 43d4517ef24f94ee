# SPDX-License-Identifier: Apache-2.0
"""The REST service: as a program against a real pool, and its states with a stand-in for the store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import socket
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path
from unittest.mock import Mock

import pytest

import mooncake.mooncake_store_service as service_module
from mooncake.mooncake_store_service import MooncakeStoreService, _shm_name_to_path, parse_arguments
from store_helpers import PATIENCE_S, MiB


class Service:
    def __init__(self, master: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mooncake.mooncake_store_service", "--port", "0", "-Dlocal_hostname=127.0.0.1", "-Dlocal_buffer_size=16MB",
             "--define", "global_segment_size=32MB", *arguments],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "MOONCAKE_MASTER": master})
        text = ""
        for line in self.process.stderr:
            text += line
            found = re.search(r"listens on 0\.0\.0\.0:(\d+)", line)
            if found and "REST" in line:
                self.port = int(found[1])
                return
        raise AssertionError(f"the service ended with {self.process.wait(PATIENCE_S)}:\n{text}")

    def ask(self, method: str, path: str, body=None) -> tuple[int, object]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                status, kind, content = answer.status, answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as error:
            status, kind, content = error.code, error.headers["Content-Type"], error.read()
        return status, json.loads(content) if "json" in kind else content

    def talk(self, text: bytes) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        peer.sendall(text)
        return peer

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@pytest.fixture(scope="module")
def service(master):
    made = Service(master.address)
    yield made
    assert made.stop() == 0


def test_values_over_http(service):
    assert service.ask("PUT", "/api/put", {"key": "a/b", "value": "välue"}) == (200, {"status": "success"})
    assert service.ask("GET", "/api/get/a/b") == (200, "välue".encode())
    assert service.ask("GET", "/api/exist/a/b") == (200, {"exists": True})
    assert service.ask("GET", "/api/exist/none") == (200, {"exists": False})
    assert service.ask("GET", "/api/get/none") == (404, {"error": "Key not found"})
    status, answer = service.ask("DELETE", "/api/remove/none")
    assert status == 500 and "Remove operation failed" in answer["error"] and "-704" in answer["error"]


@pytest.mark.parametrize("key", ["a b", "\n", "x\ny", "ä//ö", "..", "%2F", "k" * 9000], ids=lambda key: repr(key[:10]))
def test_keys_of_all_kinds_go_both_ways(service, key):
    path = urllib.parse.quote(key, safe="")
    assert service.ask("PUT", "/api/put", {"key": key, "value": "v" + key}) == (200, {"status": "success"})
    assert service.ask("GET", f"/api/exist/{path}") == (200, {"exists": True})
    assert service.ask("GET", f"/api/get/{path}") == (200, ("v" + key).encode())
    assert service.ask("DELETE", f"/api/remove/{path}")[0] in (200, 500)  # read just now


def test_removal_over_http(service):
    assert service.ask("PUT", "/api/put", {"key": "r", "value": "v"})[0] == 200
    assert service.ask("DELETE", "/api/remove/r") == (200, {"status": "success"})
    assert service.ask("PUT", "/api/put", {"key": "r2", "value": "v"})[0] == 200
    status, answer = service.ask("DELETE", "/api/remove_all")
    assert status == 200 and re.fullmatch(r"success removed \d+ keys", answer["status"])


@pytest.mark.parametrize("body", [{}, {"key": "k"}, {"value": "v"}, {"key": "", "value": "v"}, {"key": 1, "value": "v"}, {"key": "\ud800", "value": "v"},
                                  {"key": "k", "value": "\ud800"}], ids=repr)
def test_bad_puts_are_answered_400(service, body):
    status, answer = service.ask("PUT", "/api/put", body)
    assert status == 400 and "Missing key or value" in answer["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"key":' + b"1" * 5000 + b"}"], ids=lambda body: repr(body[:10]))
def test_bodies_that_are_no_json_are_answered_400(service, body):
    status, answer = service.ask("PUT", "/api/put", body)
    assert status == 400 and answer["error"]


@pytest.mark.parametrize("header", [b"Content-Type: application/json; charset=nosuch", b"Content-Encoding: gzip"])
def test_bodies_that_cannot_be_read_are_answered_400(service, header):
    peer = service.talk(b"PUT /api/put HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 7\r\n" + header + b"\r\n\r\nno gzip")
    assert peer.recv(4096).startswith(b"HTTP/1.1 400")
    peer.close()


def test_half_a_request_does_not_hold_up_the_end(master):
    service = Service(master.address)
    peer = service.talk(b"PUT /api/put HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n")
    assert peer.recv(4096).startswith(b"HTTP/1.1 100")  # it waits for the rest
    service.process.send_signal(signal.SIGTERM)
    service.process.communicate(timeout=30)
    assert service.process.returncode == 0
    peer.close()


def test_a_crowd_of_half_requests_keeps_nobody_else_out(master):
    service = Service(master.address)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (200, 200))
    held = []
    for _ in range(250):
        with contextlib.suppress(ConnectionError):  # closed already
            held.append(service.talk(b""))
            held[-1].sendall(b"PUT /api/put HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert service.ask("PUT", "/api/put", {"key": "crowd", "value": "v"})[0] == 200
    assert service.ask("GET", "/api/get/crowd") == (200, b"v")
    for peer in held:
        peer.close()
    assert service.stop() == 0


def test_segments_over_http(service):
    status, answer = service.ask("POST", "/api/mount", {"size": 16 * MiB})
    assert status == 200 and answer["status"] == "success" and answer["allocated_size"] >= 16 * MiB
    assert service.ask("POST", "/api/unmount", {"segment_ids": answer["segment_ids"]})[0] == 200
    status, answer = service.ask("POST", "/api/unmount", {"segment_ids": "1-2"})
    assert status == 500 and "Unmount and free failed, ret=" in answer["error"]
    status, answer = service.ask("POST", "/api/mount", {"size": 1 << 60})
    assert status == 500 and "Allocate and mount failed" in answer["error"]
    status, answer = service.ask("POST", "/api/mount_shm", {"name": "mooncake-none", "size": 4096})
    assert status == 500 and "Mount failed, ret=" in answer["error"]


def test_shared_memory_over_http(service):
    name = f"mooncake-test-{uuid.uuid4().hex}"
    file = Path("/dev/shm") / name
    file.write_bytes(bytes(16 * MiB))
    try:
        status, answer = service.ask("POST", "/api/mount_shm", {"name": "/" + name, "size": 16 * MiB})
        assert status == 200 and answer["segment_ids"]
        assert service.ask("POST", "/api/unmount_shm", {"segment_ids": answer["segment_ids"]})[0] == 200
        status, again = service.ask("POST", "/api/unmount_shm", {"segment_ids": answer["segment_ids"]})
        assert status == 500 and again["failed_segment_ids"] == answer["segment_ids"]
        assert "Unmount failed for one or more segments" in again["error"]
        status, answer = service.ask("POST", "/api/reconfigure", {"mode": "Decode", "path": str(file), "size": 16 * MiB})
        assert status == 200 and answer["mode"] == "decode" and answer["segment_ids"]
        assert service.ask("POST", "/api/reconfigure", {"mode": "prefill"}) == (200, {"status": "success", "mode": "prefill"})
    finally:
        file.unlink()


@pytest.mark.parametrize("path, body, text", [
    ("/api/mount", {"size": True}, "Invalid size"), ("/api/mount", {"size": 0}, "Invalid size"),
    ("/api/mount_shm", {"name": "..", "size": 1}, "Missing or invalid name or size"),
    ("/api/mount_shm", {"name": "a", "size": "1"}, "Missing or invalid name or size"), ("/api/unmount", {}, "Missing segment_ids"),
    ("/api/unmount_shm", {"segment_ids": []}, "Missing segment_ids"), ("/api/reconfigure", {"mode": "x"}, "Invalid mode"),
    ("/api/reconfigure", {"mode": "decode"}, "Missing path or size for decode mode")])
def test_bad_requests_are_answered_in_the_words_that_callers_look_for(service, path, body, text):
    status, answer = service.ask("POST", path, body)
    assert status == 400 and text in answer["error"]


@pytest.mark.parametrize("path, body", [
    ("/api/mount", {"size": True}), ("/api/mount", {"size": 1.5}), ("/api/mount", {"size": "16"}), ("/api/mount", {"size": 0}), ("/api/mount", {}),
    ("/api/mount", {"size": 1, "protocol": 5}), ("/api/unmount", {}), ("/api/unmount", {"segment_ids": []}), ("/api/unmount", {"segment_ids": [1]}),
    ("/api/unmount", {"segment_ids": "1-2", "grace_period_seconds": -1}), ("/api/mount_shm", {"size": 1}), ("/api/mount_shm", {"name": "..", "size": 1}),
    ("/api/mount_shm", {"name": "a/b", "size": 1}), ("/api/unmount_local_disk", {"grace_period_seconds": True}),
    ("/api/unmount_local_disk", {"grace_period_seconds": 3601}), ("/api/reconfigure", {}), ("/api/reconfigure", {"mode": "decode"}),
    ("/api/reconfigure", {"mode": "decode", "path": "/x", "size": "1"})])
def test_bad_requests_are_answered_400(service, path, body):
    status, answer = service.ask("POST", path, body)
    assert status == 400 and answer["error"]


def test_service_gives_up_without_a_master():
    with pytest.raises(AssertionError, match="ended with 1"):
        Service("127.0.0.1:1", "--max-wait-time", "0", "-Dmaster_server_address=127.0.0.1:1")


# ---- by itself


@pytest.mark.parametrize("name", ["", "/", ".", "..", "/..", "a/b", "//a", "a/", None, 5, "a\0b"])
def test_names_that_lead_elsewhere_have_no_path(name):
    assert _shm_name_to_path(name) is None


def test_names_of_shared_memory_become_paths():
    assert _shm_name_to_path("a") == _shm_name_to_path("/a") == "/dev/shm/a"


def test_arguments_are_read():
    options = parse_arguments(["--config", "f", "-Da=1", "--define", "b=2=3", "--port", "1", "--max-wait-time", "5"])
    assert (options.config, options.define, options.port, options.max_wait_time) == ("f", ["a=1", "b=2=3"], 1, 5)


def test_main_hands_on_what_the_arguments_say(monkeypatch):
    made = []

    class Stand:
        def __init__(self, *arguments) -> None:
            made.append(arguments)

        async def start_store_service(self, max_wait_time, shutdown_event):
            made.append((max_wait_time, shutdown_event.is_set()))
            return False

        async def stop(self):
            made.append("stopped")

    monkeypatch.setattr(service_module, "MooncakeStoreService", Stand)
    monkeypatch.setattr(sys, "argv", ["x", "--config", "f", "-Da=b", "-Dnonsense", "-Dc=d=e", "--max-wait-time", "3"])
    with pytest.raises(RuntimeError):
        asyncio.run(service_module.main())
    assert made == [("f", {"a": "b", "c": "d=e"}), (3, False), "stopped"]
    assert service_module.sync_main() == 1


def test_signals_set_the_event_whatever_the_loop_can_do():
    loop, event = Mock(), Mock()
    service_module._install_shutdown_signal_handlers(loop, event)
    assert [call.args for call in loop.add_signal_handler.mock_calls] == [(signal.SIGINT, event.set), (signal.SIGTERM, event.set)]
    loop.add_signal_handler.side_effect = NotImplementedError
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        service_module._install_shutdown_signal_handlers(loop, event)
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        loop.call_soon_threadsafe.assert_called_once_with(event.set)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture
def configured(monkeypatch):
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:1")
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)


@pytest.mark.parametrize("name", ["master_server_address", "master_server_addr"])
def test_a_master_on_the_command_line_is_enough(monkeypatch, name):
    for variable in ("MOONCAKE_MASTER", "MOONCAKE_CONFIG_PATH"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeStoreService(None, {"tenant_id": "t"})
    assert MooncakeStoreService(None, {name: "10.0.0.9:1", "tenant_id": "t"}).setup_config()["master_server_addr"] == "10.0.0.9:1"
    monkeypatch.setenv("MOONCAKE_MASTER", "10.0.0.8:1")
    assert MooncakeStoreService(None, {name: "10.0.0.9:1"}).setup_config()["master_server_addr"] == "10.0.0.9:1"
    assert MooncakeStoreService().setup_config()["master_server_addr"] == "10.0.0.8:1"


@pytest.mark.parametrize("outcomes, started", [([0], True), ([-1, 0], True), ([RuntimeError("x"), 0], True), ([-1] * 9, False)])
def test_the_service_tries_until_the_store_is_set_up(configured, monkeypatch, outcomes, started):
    monkeypatch.setattr(service_module, "_RETRY_S", 0.001)
    store = Mock()
    store.setup.side_effect = [*outcomes, *[-1] * 10_000]
    monkeypatch.setattr(service_module, "MooncakeDistributedStore", lambda: store)
    service = MooncakeStoreService(None, {"global_segment_size": "1gb", "nosuch": "1", "tenant_id": "t"})
    assert (service.config.global_segment_size, service.config.tenant_id) == ("1gb", "t")
    assert asyncio.run(service.start_store_service(60 if started else 0.05)) is started
    asked = store.setup.call_args.args[0]
    assert (asked["global_segment_size"], asked["master_server_addr"]) == ("1gb", "127.0.0.1:1") and "nosuch" not in asked


@pytest.mark.parametrize("exists, value, status", [([1], b"v", 200), ([0], b"v", 404), ([-1], b"v", 500), ([1, 0], b"", 404), ([1, 1], b"", 200),
                                                     ([1], None, 500)])
def test_a_get_asks_first_whether_there_is_a_value(configured, exists, value, status):
    service = MooncakeStoreService()
    service.store = Mock()
    service.store.is_exist.side_effect, service.store.get.return_value = exists, value
    assert asyncio.run(service.handle_get(Mock(match_info={"key": "k"}))).status == status


def test_a_store_that_is_set_up_too_late_is_closed_again(configured, monkeypatch):
    store = Mock()

    async def use() -> bool:
        shutdown = asyncio.Event()
        loop = asyncio.get_running_loop()
        store.setup.side_effect = lambda _: asyncio.run_coroutine_threadsafe(set_event(shutdown), loop).result() or 0
        return await MooncakeStoreService().start_store_service(PATIENCE_S, shutdown)

    async def set_event(event) -> None:
        event.set()

    store.close.return_value = 0
    monkeypatch.setattr(service_module, "MooncakeDistributedStore", lambda: store)
    assert asyncio.run(use()) is False
    store.close.assert_called_once_with()


def test_any_object_with_the_fields_is_a_configuration(configured):
    service = MooncakeStoreService()
    service.config = Mock(spec_set=["local_hostname", "protocol"], local_hostname="h", protocol="efa")
    assert service.setup_config() == {"local_hostname": "h", "protocol": "efa"}


def test_segments_have_the_protocol_of_the_configuration_and_no_grace_of_their_own(configured):
    service = MooncakeStoreService(None, {"protocol": "efa"})
    service.store = store = Mock()
    store.mount_segment.return_value = {"ret": 0, "segment_ids": ["1-0"]}
    store.unmount_segment.return_value = 0

    async def use() -> None:
        await service.handle_mount_shm(FakeRequest({"name": "n", "size": 5}))
        await service.handle_unmount_shm(FakeRequest({"segment_ids": "1-0"}))

    asyncio.run(use())
    store.mount_segment.assert_called_once_with("/dev/shm/n", 5, 0, "efa", "")
    store.unmount_segment.assert_called_once_with(["1-0"])


def test_what_is_unmounted_by_name_is_no_longer_tracked(configured):
    service = MooncakeStoreService()
    service.store = store = FakeStore()
    store.mounted, store.stuck = ["1-0", "2-0"], {"2-0"}
    service.mounted_segment_ids, service.current_mode = ["1-0", "2-0"], "decode"

    async def ask() -> int:
        return (await service.handle_unmount_shm(FakeRequest({"segment_ids": service.mounted_segment_ids}))).status

    assert asyncio.run(ask()) == 500 and (service.mounted_segment_ids, service.current_mode) == (["2-0"], "decode")
    store.stuck = set()
    assert asyncio.run(ask()) == 200 and (service.mounted_segment_ids, service.current_mode) == ([], "prefill")


class FakeStore:
    """Mounts what it is told to; unmounting fails for the ids in `stuck`."""

    def __init__(self) -> None:
        self.mounted, self.stuck, self.next, self.ret = [], set(), 0, 0

    def mount_segment(self, path, size, offset, protocol, location):
        if self.ret:
            return {"ret": self.ret, "segment_ids": []}
        self.next += 1
        self.mounted.append(f"{self.next}-0")
        return {"ret": 0, "segment_ids": [f"{self.next}-0"]}

    def unmount_segment(self, ids, grace_period_seconds=0):
        if self.stuck.intersection(ids):
            return -1
        for one in ids:
            self.mounted.remove(one)
        return 0


class FakeRequest:
    def __init__(self, body) -> None:
        self.body = body

    async def json(self):
        return self.body


def test_reconfiguring_keeps_track_of_what_is_mounted(configured):
    decode = {"mode": "decode", "path": "/x", "size": 5}

    async def use() -> None:
        service = MooncakeStoreService(None, {"device_name": "d"})
        assert service.setup_config()["rdma_devices"] == "d" and service.setup_config()["master_server_addr"] == "127.0.0.1:1"
        store = service.store = FakeStore()

        async def ask(body) -> int:
            return (await service.handle_reconfigure(FakeRequest(body))).status

        store.ret = -1
        assert await ask(decode) == 500 and (service.current_mode, service.last_mount_info) == ("prefill", {})
        store.ret = 0
        assert await ask(decode) == 200 and service.mounted_segment_ids == ["1-0"] and service.last_mount_info["path"] == "/x"
        store.ret = -1
        answer = json.loads((await service.handle_reconfigure(FakeRequest(decode))).text)
        assert "keeping previous decode segments" in answer["error"] and answer["mode"] == "decode"
        assert (service.current_mode, service.mounted_segment_ids) == ("decode", ["1-0"])
        store.ret, store.stuck = 0, {"1-0"}
        assert await ask(decode) == 200 and service.mounted_segment_ids == ["2-0", "1-0"]
        assert await ask({"mode": "prefill"}) == 500 and service.mounted_segment_ids == ["2-0", "1-0"]
        store.stuck = set()
        assert await ask({"mode": "prefill"}) == 200 and (service.mounted_segment_ids, store.mounted, service.last_mount_info) == ([], [], {})
        service.store = None

    asyncio.run(use())
