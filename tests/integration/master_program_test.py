# SPDX-License-Identifier: Apache-2.0
"""mooncake_master and mooncake_client, run as users run them."""

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60
STOP_TIMEOUT_S = 5


def program(name: str) -> str:
    """What was built last here, or what is installed."""
    built = ROOT / "build" / "dev" / "bin" / name
    if built.exists():
        return str(built)
    import mooncake

    return str(Path(mooncake.__file__).parent / "bin" / name)


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return value


class Process:
    """A program whose output is kept, and that is ended in order."""

    def __init__(self, name: str, *flags: str, env: dict[str, str] | None = None, log: Path):
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen([program(name), *flags], stdout=output, stderr=subprocess.STDOUT, env=os.environ | (env or {}))

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            assert self.process.poll() is None, self.text()
            return re.search(pattern, self.text())

        return str(eventually(found, f"no {pattern} in {self.text()}").group(1))

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code; fails when it takes too long."""
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)


class Master(Process):
    def __init__(self, *flags: str, log: Path, env: dict[str, str] | None = None):
        super().__init__("mooncake_master", "--port=0", "--metrics_port=0", "--metrics_host=127.0.0.1", *flags, log=log, env=env)
        self.port = int(self.wait_for(r"Master service started on port (\d+)"))
        self.admin_port = int(self.wait_for(r"dashboard on http://\S*:(\d+)/"))

    def ask(self, path: str, method: str = "GET", body: str | None = None) -> tuple[int, str, str]:
        return ask(self.admin_port, path, method, body)

    def json(self, path: str, method: str = "GET", status: int = 200) -> Any:
        code, kind, text = self.ask(path, method)
        assert code == status, text
        assert kind.startswith("application/json")
        return json.loads(text)


class Node(Process):
    def __init__(self, master: Master, *flags: str, log: Path, env: dict[str, str] | None = None):
        super().__init__("mooncake_client", "--host=127.0.0.1", "--metadata_server=P2PHANDSHAKE", f"--master_server_address=127.0.0.1:{master.port}",
                         "--global_segment_size=16MB", *flags, log=log, env=env)
        self.name = self.wait_for(r"Client (\S+) lends 16777216 bytes")


def ask(port: int, path: str, method: str = "GET", body: str | None = None) -> tuple[int, str, str]:
    """Status, content type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def heartbeats(master: Master) -> int:
    found = re.search(r"^master_ping_requests_total (\d+)$", master.ask("/metrics")[2], re.MULTILINE)
    assert found
    return int(found.group(1))


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture()
def master(tmp_path: Path) -> Iterator[Master]:
    with Master(log=tmp_path / "master.log") as started:
        yield started


def run(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program(name), *flags], capture_output=True, text=True, timeout=TIMEOUT_S)


# ---- the master's ports


def test_an_empty_master_answers_everything(master: Master) -> None:
    assert master.json("/health")["status"] == "ok"
    assert master.ask("/role") == (200, "text/plain; charset=utf-8", "leader")
    assert master.ask("/ha_status")[2] == "serving"
    assert master.json("/leader")["leader_address"].endswith(f":{master.port}")
    assert master.json("/kv_events/status")["enabled"] is False
    assert master.ask("/get_all_segments")[::2] == (200, "")
    assert master.ask("/get_all_keys")[::2] == (200, "")
    assert master.json("/get_segments_detail") == {"total_segments": 0, "segments": []}
    assert master.json("/query_key?key=a", status=404)["error_code"] == -704
    missing = master.json("/batch_query_keys?keys=a,b")["data"]["b"]
    assert (missing["ok"], missing["error"], missing["values"]) == (False, "OBJECT_NOT_FOUND", None)
    assert master.json("/api/v1/segments/status?segment=x", status=404)["error_code"] == -101
    assert master.json("/api/v1/remove_all", "POST") == {"success": True, "removed_count": 0}
    assert master.ask("/no/such/page")[0] == 404
    code, kind, page = master.ask("/")
    assert code == 200 and kind.startswith("text/html") and "</html>" in page


def test_a_node_is_seen_while_it_lives(master: Master, tmp_path: Path) -> None:
    with Node(master, log=tmp_path / "node.log") as node:
        assert master.ask("/get_all_segments")[2] == f"{node.name}\n"
        assert f"{node.name}\nUsed(bytes): 0\nCapacity(bytes) : 16777216\n" == master.ask(f"/query_segment?segment={node.name}")[2]
        (segment,) = master.json("/get_segments_detail")["segments"]
        assert segment["segment_name"] == node.name and segment["status"] == "OK" and segment["size_human"] == "16.00 MB"
        assert master.json(f"/api/v1/segments/status?segment={node.name}")["status_name"] == "OK"
        metrics = master.ask("/metrics")[2]
        assert f'segment_total_capacity_bytes{{segment="{node.name}"}} 16777216' in metrics
        assert "\nmaster_active_clients 1\n" in metrics
        assert "16.00 MB" in master.ask("/metrics/summary")[2]
        assert len(master.json("/api/v1/overview")["clients"]) == 1
        assert node.end() == 0
        assert master.ask("/get_all_segments")[2] == ""
        assert node.name not in master.ask("/metrics")[2]


def test_metrics_have_the_names_that_dashboards_ask_for(master: Master) -> None:
    names = set(re.findall(r"^# TYPE (\S+)", master.ask("/metrics")[2], re.MULTILINE))
    single = ("put_start put_end put_revoke get_replica_list get_replica_list_by_regex exist_key remove remove_by_regex remove_all mount_segment "
              "unmount_segment remount_segment ping create_copy_task create_move_task query_task update_task").split()
    wanted = {f"master_{call}_{what}_total" for call in single for what in ("requests", "failures")}
    wanted |= {f"master_batch_{call}_{what}_total" for call in ("exist_key", "get_replica_list", "put_start", "put_end", "put_revoke", "replica_clear")
               for what in ("requests", "failures", "partial_successes", "items", "failed_items")}
    wanted |= set("master_allocated_bytes master_total_capacity_bytes master_key_count master_active_clients master_value_size_bytes mem_cache_hit_nums_ "
                  "file_cache_hit_nums_ mem_cache_hit_bytes_total file_cache_hit_bytes_total mem_cache_nums_ file_cache_nums_ master_put_start_discard_cnt "
                  "master_put_start_release_cnt master_put_start_discarded_staging_size master_put_start_alloc_failures_total "
                  "master_put_start_partial_allocations_total master_attempted_evictions_total master_successful_evictions_total master_evicted_key_count "
                  "master_evicted_size_bytes".split())
    assert not wanted - names


def test_garbage_on_any_port_hurts_nobody(master: Master) -> None:
    for port in (master.port, master.admin_port):
        for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 5000, os.urandom(4096), b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20000):
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
                try:
                    connection.sendall(garbage)
                except OSError:
                    pass  # it had heard enough
    assert master.json("/health")["status"] == "ok"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_master_in_order(master: Master, tmp_path: Path, number: int) -> None:
    with Node(master, log=tmp_path / "node.log"), socket.create_connection(("127.0.0.1", master.admin_port)) as idle:
        idle.sendall(b"GET /hea")
        assert master.end(number) == 0


# ---- the metadata server


def test_the_metadata_server_is_part_of_the_master_if_asked_for(tmp_path: Path) -> None:
    with Master("--enable_http_metadata_server", "--http_metadata_server_port=0", log=tmp_path / "master.log") as master:
        port = int(master.wait_for(r"metadata server on http://\S*:(\d+)/metadata"))
        assert ask(port, "/health")[0] == 200
        assert ask(port, "/metadata?key=mooncake/rpc_meta/a")[0] == 404
        assert ask(port, "/metadata?key=mooncake/rpc_meta/a", "PUT", "1")[0] == 200
        assert ask(port, "/metadata?key=mooncake/rpc_meta/a", "PUT", "1")[0] == 200
        assert ask(port, "/metadata?key=mooncake/rpc_meta/a", "PUT", "2")[0] == 400
        assert ask(port, "/metadata?key=mooncake/rpc_meta/a")[2] == "1"
        assert ask(port, "/metadata?key=mooncake/rpc_meta/a", "DELETE")[0] == 200
        assert ask(port, "/metadata")[0] == 400
        assert master.end() == 0


def test_a_node_that_logs_nothing_stays_until_it_is_told_to_end(master: Master, tmp_path: Path) -> None:
    with Node(master, log=tmp_path / "node.log", env={"MC_LOG_LEVEL": "ERROR"}) as node:
        with pytest.raises(subprocess.TimeoutExpired):
            node.process.wait(1)
        assert node.end() == 0


def test_the_metadata_of_a_killed_node_is_deleted(tmp_path: Path) -> None:
    with Master("--enable_http_metadata_server", "--http_metadata_server_port=0", "--enable_metadata_cleanup_on_timeout", "--client_ttl=1",
                log=tmp_path / "master.log") as master:
        port = int(master.wait_for(r"metadata server on http://\S*:(\d+)/metadata"))
        with Node(master, f"--metadata_server=http://127.0.0.1:{port}/metadata", log=tmp_path / "node.log") as node:
            keys = [f"/metadata?key=mooncake/ram/{node.name}", f"/metadata?key=mooncake/rpc_meta/{node.name}"]
            assert [ask(port, key)[0] for key in keys] == [200, 200]
            seen = heartbeats(master) + 8  # which takes longer than a client may be silent
            eventually(lambda: heartbeats(master) >= seen, "a node sends no heartbeats")
            assert [ask(port, key)[0] for key in keys] == [200, 200]
            node.process.kill()
            eventually(lambda: [ask(port, key)[0] for key in keys] == [404, 404], "metadata of a dead node stays")


# ---- flags and files


@pytest.mark.parametrize("flags, reason", [
    (["--no_such_flag"], "no_such_flag"),
    (["--prot=1"], "did you mean --port?"),
    (["--port=many"], "--port"),
    (["--port=70000"], "65535"),
    (["--port"], "needs a value"),
    (["--eviction_ratio=2"], "eviction_ratio"),
    (["--default_kv_lease_ttl=5parsecs"], "default_kv_lease_ttl"),
    (["--memory_allocator=x"], "offset"),
    (["--enable_ha"], "ha_backend_connstring"),
    (["--enable_oplog"], "enable_ha"),
    (["--config_path=/no/such/file"], "/no/such/file"),
    (["--rpc_interface=nothing0"], "nothing0"),
    (["--rpc_address=192.0.2.1"], "192.0.2.1"),
    (["stray"], "stray"),
])
def test_the_master_says_what_is_wrong(flags: list[str], reason: str) -> None:
    done = run("mooncake_master", "--metrics_port=0", *flags) if flags[0].startswith("--port") else run("mooncake_master", "--port=0", "--metrics_port=0", *flags)
    assert done.returncode == 1
    assert reason in done.stderr


@pytest.mark.parametrize("flag", ["port", "metrics_port", "http_metadata_server_port"])
def test_a_taken_port_is_named(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = {"port": 0, "metrics_port": 0, "http_metadata_server_port": 0} | {flag: port}
        done = run("mooncake_master", "--enable_http_metadata_server", *[f"--{name}={value}" for name, value in flags.items()])
    assert done.returncode == 1
    assert str(port) in done.stderr


@pytest.mark.parametrize("name", ["mooncake_master", "mooncake_client"])
def test_help_and_version(name: str) -> None:
    shown = run(name, "--help")
    assert shown.returncode == 0 and "--log_dir" in shown.stdout
    version = run(name, "--version")
    assert version.returncode == 0 and re.fullmatch(rf"{name} \d+\.\d+.*\n", version.stdout)


def test_values_come_from_the_command_line_then_the_file_then_defaults(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    written = {"a.json": json.dumps({"rpc_port": port, "client_live_ttl_sec": 60, "enable_metric_reporting": False}),
               "a.yaml": f"rpc_port: {port}\nclient_live_ttl_sec: 60\n"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        flags = ["--metrics_port=0", "--config_path", str(tmp_path / name)]
        with Process("mooncake_master", *flags, log=tmp_path / "master.log") as process:
            assert process.wait_for(r"Master service started on port (\d+)") == str(port)
            assert process.end() == 0
        with Process("mooncake_master", *flags, f"--rpc_port={other}", log=tmp_path / "master.log") as process:
            assert process.wait_for(r"Master service started on port (\d+)") == str(other)
            assert process.end() == 0


def test_what_is_not_built_is_named_in_one_line(tmp_path: Path) -> None:
    with Master("--offload_cap_ratio=0.4", "--quota_bytes=1", "-v=1", "--max_log_size=10", log=tmp_path / "master.log") as master:
        lines = [line for line in master.text().splitlines() if "not built" in line]
        assert len(lines) == 1 and "--offload_cap_ratio" in lines[0] and "--quota_bytes" in lines[0]


def test_the_log_goes_to_a_file_if_asked_for(tmp_path: Path) -> None:
    with Process("mooncake_master", "--port=0", "--metrics_port=0", f"--log_dir={tmp_path}", log=tmp_path / "output") as process:
        process.wait_for(r"Master service started on port (\d+)")
        link = tmp_path / "mooncake_master.INFO"
        assert re.fullmatch(rf"mooncake_master\.INFO\.\d+-\d+\.{process.process.pid}", os.readlink(link))
        assert "master serves" in link.read_text()
        assert process.end() == 0


def test_a_log_that_nobody_reads_stops_nobody() -> None:
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b".")
        os.set_blocking(writer, True)
        flags = ["--port=0", "--metrics_port=0", "--metrics_host=127.0.0.1"]
        with subprocess.Popen([program("mooncake_master"), *flags], stdout=subprocess.PIPE, stderr=writer) as process:
            try:
                assert process.stdout is not None
                ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
                assert ready, "it does not get beyond its first line of log"
                assert b"Master service started" in process.stdout.readline()
                process.send_signal(signal.SIGTERM)
                assert process.wait(STOP_TIMEOUT_S) == 0
            finally:
                process.kill()
    finally:
        os.close(reader)
        os.close(writer)


def test_the_master_listens_where_it_is_told(tmp_path: Path) -> None:
    with Master("--rpc_address=127.0.0.1", log=tmp_path / "master.log") as master:
        socket.create_connection(("127.0.0.1", master.port), TIMEOUT_S).close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", master.port), 1)
    with Master("--rpc_interface=lo", log=tmp_path / "master.log") as master:
        assert master.json("/leader")["leader_address"] == f"127.0.0.1:{master.port}"


# ---- the client


def test_a_client_shows_its_own_metrics(master: Master, tmp_path: Path) -> None:
    port = free_port()
    with Node(master, "--enable_http_server", f"--http_port={port}", log=tmp_path / "node.log") as node:
        assert ask(port, "/health")[::2] == (200, '{"status":"healthy","code":0}')
        assert "mooncake_transfer_read_bytes" in ask(port, "/metrics")[2]
        assert "calls" in ask(port, "/metrics/summary")[2]
        master.process.kill()
        eventually(lambda: ask(port, "/health")[0] == 503, "a lost master is not noticed")
        assert json.loads(ask(port, "/health")[2])["code"] == 2
        assert node.end() == 0


@pytest.mark.parametrize("trouble", ["none", "killed", "stopped"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_client_whatever_the_master_does(master: Master, tmp_path: Path, number: int, trouble: str) -> None:
    with Node(master, log=tmp_path / "node.log") as node:
        if trouble == "killed":
            master.process.kill()
        if trouble == "stopped":
            master.process.send_signal(signal.SIGSTOP)
        assert node.end(number) == 0


def test_a_signal_ends_a_client_that_waits_for_its_master(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with Process("mooncake_client", "--host=127.0.0.1", "--metadata_server=P2PHANDSHAKE", f"--master_server_address=127.0.0.1:{port}",
                     "--global_segment_size=16MB", log=tmp_path / "node.log") as node:
            connection, _ = silent.accept()
            with connection:
                assert node.end() == 0


@pytest.mark.parametrize("flags, reason", [
    (["--global_segment_size=lots"], "global_segment_size"),
    (["--local_buffer_size=50%"], "local_buffer_size"),
    (["--http_port=0"], "http_port"),
    (["--master=1"], "unknown flag"),
])
def test_a_client_says_what_is_wrong(flags: list[str], reason: str) -> None:
    done = run("mooncake_client", *flags)
    assert done.returncode == 1
    assert reason in done.stderr


# ---- strange requests


def talk(port: int, request: bytes) -> bytes:
    """Everything that comes back until the master closes."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize(("request_", "status"), [
    (b"GET /role HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    (b"GET /query_key?key=" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
    (b"GET /query_key?key=%zz HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    (b"GET /query_key?key=%ff%00 HTTP/1.1\r\nConnection: close\r\n\r\n", 404),
    (b"BREW /role HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
    (b"GET /role%00 HTTP/1.1\r\nConnection: close\r\n\r\n", 404),
    (b"GET http://somewhere/role HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
    (b"POST /api/v1/drain_jobs HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
    (b"GET /role HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
    (b"GET /get_all_keys HTTP/1.0\r\n\r\n", 200),
    (b"HEAD /get_all_keys HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
])
def test_strange_requests_are_answered_and_others_served(master: Master, request_: bytes, status: int) -> None:
    answer = talk(master.admin_port, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert master.ask("/role")[0] == 200


def test_requests_that_come_together_are_answered_in_order(master: Master) -> None:
    requests = [b"GET /role", b"GET /get_all_keys", b"HEAD /get_all_keys", b"POST /role", b"GET /ha_status"]
    last = b" HTTP/1.1\r\nConnection: close\r\n\r\n"
    answer = talk(master.admin_port, b" HTTP/1.1\r\n\r\n".join(requests) + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"200", b"405", b"200"]
    assert answer.endswith(b"serving")


# ---- tenants and drains


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    policy = tmp_path / "quotas.yaml"
    flags = ["--enable_multi_tenants", f"--tenant_quota_connector_uri={policy}"]
    with Master(*flags, log=tmp_path / "master.log") as master:
        code, _, text = master.ask("/api/v1/tenant_quotas?tenant_id=red", "PUT", '{"requested_quota_bytes": 1048576}')
        assert code == 200, text
        assert master.end() == 0
    with Master(*flags, log=tmp_path / "master.log") as master:
        assert master.json("/api/v1/tenant_quotas?tenant_id=red")["data"]["requested_quota_bytes"] == 1048576
        assert 'mooncake_tenant_quota_requested_bytes{tenant_id="red"} 1048576' in master.ask("/metrics")[2]
        assert master.json("/api/v1/tenant_quotas?tenant_id=red", "DELETE")["success"] is True
        assert master.end() == 0
    policy.write_text("version: 2\n")
    refused = run("mooncake_master", "--port=0", "--metrics_port=0", *flags)
    assert refused.returncode == 1 and str(policy) in refused.stderr


def test_a_master_whose_tenants_have_no_quota_says_so(tmp_path: Path) -> None:
    for flags in ([], [f"--tenant_quota_connector_uri={tmp_path}/none.yaml"]):
        with Master("--enable_multi_tenants", *flags, log=tmp_path / "master.log") as master:
            assert "no tenant has a quota, not even 'default'" in master.text()
            code, _, text = master.ask("/api/v1/tenant_quotas?tenant_id=default", "PUT", '{"requested_quota_bytes": 1048576}')
            assert code == 200, text
    with Master(*flags, "--enable_multi_tenants", log=tmp_path / "master.log") as master:
        assert "no tenant has a quota" not in master.text()
    with Master(log=tmp_path / "master.log") as master:
        assert "quota" not in master.text()


def test_a_node_can_be_drained(master: Master, tmp_path: Path) -> None:
    with Node(master, log=tmp_path / "one.log") as one, Node(master, log=tmp_path / "other.log"):
        code, _, text = master.ask("/api/v1/drain_jobs", "POST", json.dumps({"segments": [one.name]}))
        assert code == 200, text
        job = json.loads(text)["job_id"]
        eventually(lambda: master.json(f"/api/v1/drain_jobs/query?job_id={job}")["status_name"] == "SUCCEEDED", "the drain does not end")
        assert master.json(f"/api/v1/segments/status?segment={one.name}")["status_name"] == "DRAINED"


# ---- the guide


@pytest.mark.parametrize("name", ["mooncake_master", "mooncake_client"])
def test_the_guide_names_every_flag(name: str) -> None:
    guide = (ROOT / "docs" / "guide" / "master.md").read_text()
    flags = re.findall(r"^  --(\w+) ", run(name, "--help").stdout, re.MULTILINE)
    assert len(flags) > 20
    assert [flag for flag in flags if f"`{flag}`" not in guide and f"`--{flag}`" not in guide] == []


def test_the_guide_names_every_endpoint() -> None:
    guide = (ROOT / "docs" / "guide" / "master.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "src" / "store" / "admin").glob("http_*.cpp"))
    paths = re.findall(r'"(?:GET|PUT|POST|DELETE)", "(/[^"]*)"', source)
    assert len(paths) > 10
    assert [path for path in paths if path not in guide] == []
