# SPDX-License-Identifier: Apache-2.0
"""The programs of the package, run as users run them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mooncake
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(mooncake.__file__).parent / "bin"
BENCH = PROGRAMS / "transfer_engine_bench"
TOPOLOGY = PROGRAMS / "transfer_engine_topology_dump"
TIMEOUT_S = 60


class Target:
    """transfer_engine_bench --mode=target, ended in order."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None):
        self._process = subprocess.Popen([str(BENCH), "--mode=target", "--buffer_size=33554432", *flags], stdout=subprocess.PIPE,
                                         text=True, env=os.environ | (env or {}))
        assert self._process.stdout
        words = self._process.stdout.readline().split()
        assert words and words[0] == "segment_id", words
        self.segment = words[1]

    def __enter__(self) -> "Target":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            assert self._process.wait(TIMEOUT_S) == 0
        finally:
            self._process.kill()


def initiate(segment: str, *flags: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(BENCH), f"--segment_id={segment}", "--buffer_size=33554432", "--duration=1", "--threads=2", "--batch_size=16", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | (env or {}))


@pytest.mark.parametrize("transports", ["", "tcp"])
@pytest.mark.parametrize("operation", ["read", "write"])
def test_bench_measures_a_target_in_another_process(operation: str, transports: str) -> None:
    env = {"MC_TRANSPORTS": transports}
    with Target(env=env) as target:
        done = initiate(target.segment, f"--operation={operation}", "--json", env=env)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["operation"] == operation
    assert figures["bytes"] == figures["batches"] * 16 * 65536 > 0
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]


def test_bench_reports_in_the_unit_asked_for() -> None:
    with Target("--use_managed_buffer") as target:
        done = initiate(target.segment, "--report_unit=MiB", "--use_managed_buffer")
    assert done.returncode == 0, done.stderr
    assert "MiB/s" in done.stdout
    assert "p999" in done.stdout


@pytest.mark.parametrize("flags, reason", [
    (["--mode=both"], "--mode"),
    ([], "--segment_id"),
    (["--segment_id=127.0.0.1:1", "--operation=erase"], "--operation"),
    (["--segment_id=127.0.0.1:1", "--report_unit=furlong"], "--report_unit"),
    (["--segment_id=127.0.0.1:1", "--threads=0"], "positive"),
    (["--segment_id=127.0.0.1:1", "--block_size=1000000000000"], "buffer"),
    (["--segment_id=127.0.0.1:1", "--buffer_size=16777216", "--threads=1"], "127.0.0.1:1"),
])
def test_bench_says_what_is_wrong(flags: list[str], reason: str) -> None:
    done = subprocess.run([str(BENCH), *flags], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert reason in done.stderr


def test_topology_is_json(tmp_path: Path) -> None:
    done = subprocess.run([str(TOPOLOGY)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0
    assert "cpu:0" in json.loads(done.stdout)

    file = tmp_path / "topology.json"
    file.write_text('{"cpu:0": [["nic_a"], ["nic_b"]]}')
    done = subprocess.run([str(TOPOLOGY), "--custom-topo-json", str(file)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert json.loads(done.stdout) == {"cpu:0": [["nic_a"], ["nic_b"]]}

    done = subprocess.run([str(TOPOLOGY), f"--custom_topo_json={tmp_path / 'none'}"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1


def test_the_benchmark_of_the_project_runs() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "run.py"), "--quick", "--only", "4 KiB", "--json"],
                          capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    assert all(row["ours"] > 0 and row["limit_value"] > 0 for row in rows)
