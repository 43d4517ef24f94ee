# SPDX-License-Identifier: Apache-2.0
"""The demonstration, the examples and the console scripts run as users run them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mooncake
from mooncake import cli

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


def test_demonstration_runs_a_pool_and_refuses_nothing():
    done = run(sys.executable, "-m", "mooncake.demo", "--once", "--seconds=1", "--pool-mb=64")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert "admin page http://" in done.stdout
    for path, carrier in [("same host", "shm"), ("network (tcp)", "tcp")]:
        line = next(line for line in done.stdout.splitlines() if line.startswith(path + " "))
        words = line.removeprefix(path).split()
        assert words[0] == carrier and words[-2:] == ["0", "0"], done.stdout


def test_demonstration_shows_what_a_disk_does(tmp_path):
    done = run(sys.executable, "-m", "mooncake.demo", "--once", "--seconds=2", "--pool-mb=16", f"--ssd={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"SSD: written ([\d,]+) MB/s.*from memory, ([\d,]+) from SSD", done.stdout)
    assert found and found[1] != "0" and found[2] != "0", done.stdout


POOL_THAT_IS_NEVER_READY = """#!/bin/sh
echo $$ > "$0.writing" && mv "$0.writing" "$0.pid"
exec sleep 600
"""

DEMONSTRATION_OF = """
import sys
from mooncake import cli, demo

pool = sys.argv.pop(1)
cli.program = lambda name: pool
sys.exit(demo.main())
"""


def test_an_interrupt_while_the_demonstration_starts_leaves_no_pool_behind(tmp_path):
    pool, pid = tmp_path / "pool", tmp_path / "pool.pid"
    pool.write_text(POOL_THAT_IS_NEVER_READY)
    pool.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-c", DEMONSTRATION_OF, str(pool)], start_new_session=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # tests in the background have it ignored
    while not pid.exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    assert process.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_demonstration_of_paths_verifies_every_one_without_a_terminal():
    done = run(sys.executable, "-m", "mooncake.path_demo", "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    for path in ["own process", "shared memory, mapped", "shared memory, foreign", "tcp"]:
        line = next(line for line in done.stdout.splitlines() if line.startswith(path + " "))
        assert line.split()[-1] == "0", done.stdout


@pytest.mark.parametrize("example, says", [("write_to_peer.py", "received: hello"), ("prepared_and_asyncio.py", "8 layers sent and verified")])
def test_example_runs(example, says):
    done = run(sys.executable, str(ROOT / "examples" / example))
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout


@pytest.mark.parametrize("program", ["transfer_engine_bench", "transfer_engine_topology_dump", "mooncake_master", "mooncake_client"])
def test_console_script_becomes_the_native_program(program):
    script = f"import sys; sys.argv = ['{program}', '--help']; from mooncake import cli; cli.{program}()"
    done = run(sys.executable, "-c", script)
    assert re.search(program, done.stdout + done.stderr), done


def test_client_without_its_metadata_server_says_how_to_do_without():
    script = "import sys; sys.argv = ['mooncake_client', '--host=127.0.0.1', *sys.argv[1:]]; from mooncake import cli; cli.mooncake_client()"
    for server, hinted in (("http://127.0.0.1:1/metadata", True), ("P2PHANDSHAKE", False)):
        done = run(sys.executable, "-c", script, "--metadata_server", server, "--master_server_address=127.0.0.1:1", "--global_segment_size=16MB")
        assert done.returncode == 1 and "cannot join the pool of 127.0.0.1:1" in done.stderr
        assert ("--metadata_server P2PHANDSHAKE needs none" in done.stderr) is hinted


def test_signal_to_the_console_script_reaches_the_program():
    script = "import sys; sys.argv = ['mooncake_master', '--port=0', '--metrics_port=0', '--rpc_address=127.0.0.1']; from mooncake import cli; cli.mooncake_master()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if "Master service started on port" in line:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("flag", [["--global_segment_size=32MB"], ["-global_segment_size=32MB"], ["-global_segment_size", "32MB"]])
def test_a_pool_in_one_process_takes_its_size_with_one_dash_or_two(flag):
    command = [cli.program("mooncake_standalone"), "--port=0", "-metrics_port=0", "-rpc_address=127.0.0.1", *flag]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = []
    for line in process.stdout:
        said.append(line)
        if "the pool is ready" in line:
            break
    process.send_signal(signal.SIGTERM)
    said.append(process.communicate(timeout=60)[0])
    assert process.returncode == 0, said


def test_missing_program_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "cli.py"))
    with pytest.raises(SystemExit, match="missing from this installation"):
        cli.transfer_engine_bench()


def test_stub_knows_every_name_of_the_native_module():
    """And nothing else: types and documentation stay true."""
    import ast

    from mooncake import engine

    tree = ast.parse((Path(mooncake.__file__).parent / "engine.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, node in classes.items():
        if name == "TransferOpcode" or name.startswith("_"):  # an enum; what only the stub needs
            continue
        described = {item.name for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("__")}
        native = {key for key, value in vars(getattr(engine, name)).items() if not key.startswith("__") and callable(value)}
        assert described == native - {"TransferOpcode"}, name
    assert {name for name in dir(engine) if not name.startswith("_")} <= set(classes) | {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)} | {
        target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)} | {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert (Path(mooncake.__file__).parent / "py.typed").exists()
