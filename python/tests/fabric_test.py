# SPDX-License-Identifier: Apache-2.0
"""The engine and the store over libfabric. What every path must do is tested over this one as well, by the fixture `pair`."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time

import pytest

import mooncake.engine
from helpers import FABRIC, HAS_FABRIC, HERE, PATIENCE_S, run_python
from store_helpers import MiB, Master, open_store, random_bytes

pytestmark = pytest.mark.skipif(not HAS_FABRIC, reason="libfabric is not installed")

START = """
from mooncake.engine import TransferEngine
import sys
engine = TransferEngine()
code = engine.initialize("127.0.0.1", "P2PHANDSHAKE", sys.argv[1], "")
print(code, engine.last_error())
engine.close()
"""


def start(protocol, **environment):
    done = run_python(START, protocol, env=environment)
    return int(done.stdout.split()[0]), done.stdout + done.stderr


@pytest.fixture
def fabric(monkeypatch):
    """Everything this test starts uses nothing but the fabric."""
    for name, value in FABRIC.items():
        monkeypatch.setenv(name, value)


def test_settings_in_effect_are_told_at_start():
    code, text = start("tcp", **FABRIC)
    assert code == 0, text
    assert len(re.findall(r"rail \d+: 127\.0\.0\.[12] ", text)) == 2, text
    code, text = start("tcp", **FABRIC, MC_FABRIC_STALL_MS="1234", MC_FABRIC_STRIPE=str(1 << 19), MC_FABRIC_ATTEMPTS="5")
    assert code == 0 and re.search(r"profile tcp over libfabric \d.*: 2 rails, .*stripes of 512 KiB.* 1234 ms.* 5 attempts, .*a fence at the target", text), text


@pytest.mark.parametrize("protocol", ["efa", "rdma", "cxi"])
def test_missing_hardware_is_said_in_one_line_and_tcp_takes_over(protocol):
    code, text = start(protocol)
    lines = [line for line in text.splitlines() if " W " in line]
    assert code == 0 and len(lines) == 1, text
    assert f"protocol {protocol}" in lines[0] and "tcp carries" in lines[0]


def test_tcp_does_not_take_over_where_that_is_not_allowed():
    code, text = start("efa", MC_FABRIC_FALLBACK="0")
    assert code != 0 and "MC_FABRIC_FALLBACK" in text
    code, text = start("fabric:tcp", MC_FORCE_HCA="1")
    assert code != 0 and "MC_FORCE_HCA" in text
    code, text = start("fabric:carrier-pigeon")
    assert code != 0 and "carrier-pigeon" in text


def test_efa_is_not_supported_without_a_device():
    assert mooncake.engine.SUPPORT_EFA is False


def test_warm_up_can_be_repeated(fabric, make_local, make_peer):
    local, peer = make_local(), make_peer(env=FABRIC)
    assert [local.engine.warmup_efa_segment(peer.name) for _ in range(3)] == [0, 0, 0], local.engine.last_error()
    assert local.engine.transfer_sync_write(peer.name, local.address, peer.address, 4096) == 0
    peer.kill()
    assert local.engine.warmup_efa_segment("127.0.0.1:1") < 0


def test_a_closed_engine_leaves_no_connection_at_its_peer(fabric, make_local, make_peer):
    peer = make_peer(env=FABRIC)

    def connections():
        found = 0
        for descriptor in os.listdir(f"/proc/{peer.process.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(f"/proc/{peer.process.pid}/fd/{descriptor}").startswith("socket:")
        return found

    def connected():
        local = make_local()
        assert local.engine.transfer_sync_write(peer.name, local.address, peer.address, 1 << 20) == 0, local.engine.last_error()
        return local

    stays = connected()
    before = connections()
    closed = [connected() for _ in range(4)]
    assert connections() > before
    for local in closed:
        local.engine.close()
    deadline = time.monotonic() + PATIENCE_S
    while connections() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert connections() <= before
    assert stays.engine.transfer_sync_write(peer.name, stays.address, peer.address, 4096) == 0


def test_metrics_name_the_path_and_the_rails(fabric, make_local, make_peer):
    local, peer = make_local(), make_peer(env=FABRIC)
    assert local.engine.transfer_sync_write(peer.name, local.address, peer.address, 1 << 20) == 0
    found = re.search(r'mooncake_transfer_bytes_total\{[^}]*direction="write"[^}]*path="fabric"[^}]*\} (\d+)', local.engine.get_metrics())
    assert found and int(found[1]) == 1 << 20, local.engine.get_metrics()
    rails = re.findall(r'mooncake_fabric_bytes_total\{[^}]*direction="write"[^}]*\} (\d+)', local.engine.get_metrics())
    assert len(rails) == 2 and sum(map(int, rails)) == 1 << 20, local.engine.get_metrics()


def test_killed_peer_ends_transfers_soon_and_a_new_one_is_reached(fabric, make_local, make_peer):
    local, peer = make_local(), make_peer(env=FABRIC)
    assert local.engine.transfer_sync_write(peer.name, local.address, peer.address, 1 << 20) == 0
    peer.kill()
    assert local.engine.transfer_sync_write(peer.name, local.address, peer.address, 1 << 20) != 0
    successor = make_peer(env=FABRIC)
    assert local.engine.transfer_sync_write(successor.name, local.address, successor.address, 1 << 20) == 0
    assert successor.read(0, 1 << 10) == local.memory[:1 << 10].tobytes()


OTHER = """
import sys
sys.path.insert(0, '.')
from store_helpers import *
from mooncake.store import ReplicateConfig
store = open_store(sys.argv[1])
here = ReplicateConfig()
here.preferred_segment = store.get_hostname()
for i in range(20):
    assert store.put(f'theirs-{i}', random_bytes(300_000 + i, i), here) == 0
print('ready', flush=True)
sys.stdin.read()
assert store.get('ours') == random_bytes(5 << 20, 77)
assert store.close() == 0
"""


def test_store_of_two_processes_lives_on_the_fabric(fabric, capfd):
    master = Master()
    try:
        store = open_store(master.address, segment=64 * MiB)
        other = subprocess.Popen([sys.executable, "-c", OTHER, master.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE)
        assert other.stdout.readline() == b"ready\n"
        for i in range(20):
            assert store.get(f"theirs-{i}") == random_bytes(300_000 + i, i)
        assert store.put("ours", random_bytes(5 << 20, 77)) == 0
        assert "is reached over fabric" in capfd.readouterr().err
        other.stdin.close()
        assert other.wait(PATIENCE_S) == 0
        assert store.close() == 0
    finally:
        master.stop()


def test_check_of_a_machine_reports(tmp_path):
    script = HERE.parents[1] / "bench" / "fabric_check.py"
    if not script.exists():
        pytest.skip("not in a checkout")
    report = tmp_path / "report"
    done = subprocess.run([sys.executable, str(script), "--nodes", "127.0.0.1,127.0.0.2", "--seconds", "0.02", "--register-gib", "0.25", "--report", str(report)],
                          capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.with_suffix(".json").read_text())
    assert len(found["settings"]["nics"]) == 2 and {row["nics"] for row in found["sweep"]} == {1, 2}
    assert found["exhaustion"]["still_works"] and found["exhaustion"]["given_back"] and found["settings"]["emulated"] == []
    assert found["peer_death"]["outcome"] != 0 and found["peer_death"]["successor_reached"]
    assert "# Fabric check: fabric:tcp" in report.with_suffix(".md").read_text()
