# SPDX-License-Identifier: Apache-2.0
"""The metadata server over real HTTP, called directly, and as a program."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import requests
from aiohttp import web

from mooncake import _http_site
from mooncake.http_metadata_server import KVBootstrapServer, KVPoll, main, parse_args

TIMEOUT_S = 20


@pytest.fixture
def server():
    started = KVBootstrapServer(0, "127.0.0.1")
    started.run()
    assert started.poll() is KVPoll.Success
    yield started
    started.close()


def call(server, method, key=None, data=None, path="/metadata"):
    parameters = None if key is None else {"key": key}
    return requests.request(method, f"http://127.0.0.1:{server.port}{path}", params=parameters, data=data, timeout=TIMEOUT_S)


def test_get_returns_what_was_put(server):
    assert call(server, "PUT", "a/b", b'{"x": 1}').text == "metadata updated"
    answer = call(server, "GET", "a/b")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b'{"x": 1}', "application/json")
    assert server.store == {"a/b": b'{"x": 1}'}


def test_put_replaces_ordinary_keys(server):
    for value in (b"1", b"2"):
        assert call(server, "PUT", "mooncake/ram/node", value).status_code == 200
    assert call(server, "GET", "mooncake/ram/node").content == b"2"


def test_put_refuses_to_replace_an_address_entry_until_it_is_deleted(server):
    key = "mooncake/rpc_meta/node"
    assert call(server, "PUT", key, b"1").status_code == 200
    for value in (b"1", b"2"):  # the same value as well
        answer = call(server, "PUT", key, value)
        assert (answer.status_code, answer.text) == (400, "Duplicate rpc_meta key not allowed")
    assert call(server, "GET", key).content == b"1"
    assert call(server, "DELETE", key).status_code == 200
    assert call(server, "PUT", key, b"2").status_code == 200


def test_unknown_keys_are_404(server):
    for method in ("GET", "DELETE"):
        answer = call(server, method, "absent")
        assert (answer.status_code, answer.text) == (404, "metadata not found")


def test_delete_removes(server):
    call(server, "PUT", "k", b"v")
    answer = call(server, "DELETE", "k")
    assert (answer.status_code, answer.text) == (200, "metadata deleted")
    assert call(server, "GET", "k").status_code == 404
    assert server.store == {}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
@pytest.mark.parametrize("key", [None, "", "  ", "\t"])
def test_a_missing_or_blank_key_is_400(server, method, key):
    answer = call(server, method, key)
    assert (answer.status_code, answer.text) == (400, "metadata key is required")
    assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("method", ["POST", "PATCH", "OPTIONS"])
def test_other_methods_are_405(server, method):
    answer = call(server, method, "k")
    assert (answer.status_code, answer.text) == (405, "Method not allowed")
    assert call(server, "HEAD", "k").status_code == 405


def test_other_paths_are_404(server):
    assert call(server, "GET", "k", path="/").status_code == 404
    assert call(server, "GET", "k", path="/metadata/").status_code == 404


def test_keys_are_trimmed(server):
    call(server, "PUT", "  k ", b"v")
    assert call(server, "GET", "k").content == b"v"
    assert list(server.store) == ["k"]


@pytest.mark.parametrize("key", ["a b", "100%", "a+b", "a&key=b", "ключ/鍵", "?#="])
def test_keys_may_hold_any_text(server, key):
    assert call(server, "PUT", key, key.encode()).status_code == 200
    assert call(server, "GET", key).content == key.encode()
    assert list(server.store) == [key]


@pytest.mark.parametrize("value", [b"", bytes(range(256)), b"x" * (4 << 20)], ids=["empty", "bytes", "4MiB"])
def test_values_may_hold_any_bytes(server, value):
    assert call(server, "PUT", "k", value).status_code == 200
    assert call(server, "GET", "k").content == value


def test_values_beyond_the_limit_are_413(server):
    assert call(server, "PUT", "k", b"x" * ((16 << 20) + 1)).status_code == 413
    assert server.store == {}


def test_many_clients_at_once(server):
    def work(number):
        key = f"k{number}"
        assert call(server, "PUT", key, str(number)).status_code == 200
        return call(server, "GET", key).text == str(number)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(100)))
    assert len(server.store) == 100


def test_handler_can_be_called_without_a_server():
    async def read():
        return b"v"

    async def scenario():
        unstarted = KVBootstrapServer(0)
        request = SimpleNamespace(method="PUT", query={"key": " k "}, read=read)
        answer = await unstarted._handle_metadata(request)
        return answer.status, answer.text, unstarted.store

    assert asyncio.run(scenario()) == (200, "metadata updated", {"k": b"v"})


def test_life_cycle():
    server = KVBootstrapServer(0, "127.0.0.1")
    assert server.poll() is KVPoll.Failed
    server.close()  # nothing to close yet
    thread = server.run()
    assert thread.is_alive() and server.port != 0
    assert server.poll() is KVPoll.Success
    with pytest.raises(RuntimeError):
        server.run()
    server.close()
    assert not thread.is_alive()
    assert server.poll() is KVPoll.Failed
    with pytest.raises(requests.ConnectionError):
        call(server, "GET", "k")
    server.close()


def test_close_does_not_wait_for_idle_clients(server):
    with requests.Session() as session:
        session.get(f"http://127.0.0.1:{server.port}/metadata?key=k", timeout=TIMEOUT_S)
        server.close()  # the session still holds its connection
    assert server.poll() is KVPoll.Failed


HALF = [b"", b"GET /meta", b"PUT /metadata?key=q HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc"]


def open_half(port, text):
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    with contextlib.suppress(ConnectionError):  # it may have been closed already
        connection.sendall(text)
    return connection


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("text", HALF, ids=["nothing", "half a head", "half a body"])
def test_who_falls_silent_in_a_request_is_shown_out(server, monkeypatch, text):
    monkeypatch.setattr(_http_site, "SILENCE_S", 0.0)
    with open_half(server.port, text) as connection:
        assert is_closed(connection)


def test_connections_that_are_silent_make_room_for_others(server, monkeypatch):
    monkeypatch.setattr(_http_site, "CONNECTIONS_MAX", 8)
    held = [open_half(server.port, HALF[i % len(HALF)]) for i in range(40)]
    assert call(server, "PUT", "k", b"v").status_code == 200
    assert call(server, "GET", "k").content == b"v"
    assert is_closed(held[0])
    for connection in held:
        connection.close()


def test_a_request_that_is_being_dealt_with_is_left_alone(monkeypatch):
    monkeypatch.setattr(_http_site, "CONNECTIONS_MAX", 1)

    async def scenario():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def work(request):
            begun.set()
            await go_on.wait()
            return web.Response(text="done")

        connections = _http_site.Connections()
        app = web.Application(middlewares=[connections.middleware])
        app.router.add_get("/", work)
        runner = web.AppRunner(app)
        await runner.setup()
        await _http_site.Site(runner, "127.0.0.1", 0, connections).start()
        port = runner.addresses[0][1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await begun.wait()
        monkeypatch.setattr(_http_site, "SILENCE_S", 0.0)
        connections._sweep()
        silent, refused = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await silent.read() == b""
        refused.close()
        go_on.set()
        answer = await reader.read()
        writer.close()
        await runner.cleanup()
        return answer

    assert asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S)).endswith(b"done")


def test_a_crowd_of_half_requests_leaves_descriptors_for_others():
    command = [sys.executable, "-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", "0"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    held = []
    try:
        port = int(program.stderr.readline().rsplit(":", 1)[1])
        for i in range(200):
            held.append(open_half(port, HALF[i % len(HALF)]))
        url = f"http://127.0.0.1:{port}/metadata?key=k"
        assert requests.put(url, data=b"v", timeout=TIMEOUT_S).status_code == 200
        assert requests.get(url, timeout=TIMEOUT_S).content == b"v"
    finally:
        for connection in held:
            connection.close()
        program.terminate()
        log = program.communicate(timeout=TIMEOUT_S)[1]
    assert program.returncode == 0
    assert "Too many open files" not in log


def test_a_taken_port_fails_without_an_exception(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = KVBootstrapServer(taken.getsockname()[1], "127.0.0.1")
        server.run().join(TIMEOUT_S)
        assert server.poll() is KVPoll.Failed
        assert str(server.port) in caplog.text
        server.close()


def test_default_options():
    options = parse_args([])
    assert (options.port, options.host, options.log_level) == (8080, "0.0.0.0", "INFO")
    with pytest.raises(SystemExit):
        parse_args(["--log-level", "LOUD"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_program_serves_until_it_is_told_to_end(number):
    command = [sys.executable, "-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", "0"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        first = program.stderr.readline()
        assert "listens on 127.0.0.1:" in first
        port = int(first.rsplit(":", 1)[1])
        url = f"http://127.0.0.1:{port}/metadata?key=k"
        assert requests.put(url, data=b"v", timeout=TIMEOUT_S).status_code == 200
        assert requests.get(url, timeout=TIMEOUT_S).content == b"v"
        program.send_signal(number)
        assert program.wait(TIMEOUT_S) == 0
    finally:
        program.kill()
        program.communicate()


def test_program_returns_an_error_when_it_cannot_listen():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1])]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 1
    assert "cannot listen" in ended.stderr


def test_console_script_is_main():
    assert callable(main)


def test_import_needs_no_native_module():
    code = "import sys, mooncake.http_metadata_server; sys.exit(any(name in sys.modules for name in ('mooncake.engine', 'mooncake.store')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S).returncode == 0
