# SPDX-License-Identifier: Apache-2.0
"""The connectors for vLLM, called as vLLM calls them, between processes; vLLM itself is a stand-in (fake_vllm.py)."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import fake_vllm
from helpers import HERE
from mooncake import __version__, kvplan
from mooncake.integrations import vllm_settings
from mooncake.vllm_v1_proxy_server import command
from store_helpers import Master, open_store

HANDOVER = "mooncake.mooncake_connector_v1:MooncakeConnector"
STORE = "mooncake.integrations.vllm_store_connector:MooncakeStoreConnector"
PROMPT = [(7 * number) % 251 for number in range(70)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Peer:
    """A prefill instance in another process."""

    def __init__(self, **options) -> None:
        self._process = subprocess.Popen([sys.executable, str(HERE / "fake_vllm.py"), json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, bufsize=1, env={**os.environ, "MC_LOG_LEVEL": "ERROR"})
        assert json.loads(self._process.stdout.readline()) == "ready"

    def call(self, what: str, *arguments):
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        answer = self._process.stdout.readline()
        assert answer, "it ended"
        return json.loads(answer)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture(autouse=True)
def stand_in():
    fake_vllm.uninstall()
    fake_vllm.install()
    yield
    fake_vllm.uninstall()


@pytest.fixture
def make():
    made = []

    def one(factory, *arguments, **options):
        made.append(factory(*arguments, **options))
        return made[-1]

    yield one
    for each in made:
        each.kill() if isinstance(each, Peer) else each.close()


@pytest.mark.parametrize("p, d", [((2, 1), (1, 1)), ((1, 1), (4, 1)), ((4, 1), (2, 2)), ((1, 4), (2, 1)), ((2, 2), (1, 2))])
@pytest.mark.parametrize("layerwise", [True, False])
def test_a_request_is_handed_over_between_processes(make, p, d, layerwise):
    """Prefill first, as routers do whose decode instances pull."""
    port = free_port()
    prefill = make(Peer, kind=HANDOVER, tp=p[0], pp=p[1], role="kv_producer", bootstrap_port=port, layerwise=layerwise, engine_id="life-1")
    decode = make(fake_vllm.Instance, HANDOVER, tp=d[0], pp=d[1], block_size=8, role="kv_consumer")
    params = prefill.call("prefill", "p1", PROMPT, {"do_remote_decode": True})
    assert params["remote_engine_id"] == "life-1" and params["do_remote_prefill"]
    assert decode.start("d1", PROMPT, params) == len(PROMPT)
    decode.run_until(lambda: decode.results)
    assert decode.results == {"d1": "loaded"} and decode.wrong("d1") == 0
    assert decode.finish("d1") is None
    assert prefill.call("settle") == 32  # nothing is held any more


def test_both_sides_at_once_meet_under_a_transfer_id(make):
    port = free_port()
    prefill = make(Peer, kind=HANDOVER, tp=2, role="kv_producer", bootstrap_port=port, engine_id="life-1")
    decode = make(fake_vllm.Instance, HANDOVER, tp=1, block_size=8, role="kv_consumer")
    params = {"do_remote_prefill": True, "remote_bootstrap_addr": f"http://127.0.0.1:{port}", "remote_engine_id": "life-1", "transfer_id": "xfer-1"}
    assert decode.start("d1", PROMPT, params) == len(PROMPT)
    decode.step()
    prefill.call("prefill", "p1", PROMPT, {"do_remote_decode": True, "transfer_id": "xfer-1"})
    decode.run_until(lambda: decode.results)
    assert decode.results == {"d1": "loaded"} and decode.wrong("d1") == 0


def test_a_prefill_process_that_dies_is_a_load_error_for_the_scheduler(make):
    port = free_port()
    prefill = make(Peer, kind=HANDOVER, tp=2, role="kv_producer", bootstrap_port=port, engine_id="life-1")
    decode = make(fake_vllm.Instance, HANDOVER, tp=2, block_size=8, role="kv_consumer")
    params = {"do_remote_prefill": True, "remote_bootstrap_addr": f"http://127.0.0.1:{port}", "remote_engine_id": "life-1", "transfer_id": "xfer-1"}
    decode.start("d1", PROMPT, params)
    decode.step()
    prefill.call("start_and_stop_half_way", "p1", PROMPT, {"do_remote_decode": True, "transfer_id": "xfer-1"})
    prefill.kill()
    decode.run_until(lambda: decode.results)
    assert decode.results == {"d1": "failed"}
    assert decode.bad == set(decode.loading["d1"].blocks)
    assert params["do_remote_prefill"] is False  # scheduled again, it is computed here


def test_time_outs_reach_both_schedulers(make):
    """Nobody comes for what is computed, and nobody computes what is waited for."""
    port = free_port()
    prefill = make(fake_vllm.Instance, HANDOVER, role="kv_producer", bootstrap_port=port, engine_id="life-1", attach_timeout=0.1)
    prefill.prefill("p1", PROMPT, {"do_remote_decode": True})
    assert len(prefill.free) < 32
    prefill.run_until(lambda: len(prefill.free) == 32)
    decode = make(fake_vllm.Instance, HANDOVER, role="kv_consumer", handover_timeout=0.3)
    decode.start("d1", PROMPT, {"do_remote_prefill": True, "remote_bootstrap_addr": f"http://127.0.0.1:{port}", "remote_engine_id": "life-1",
                                "transfer_id": "never"})
    decode.run_until(lambda: decode.results)
    assert decode.results == {"d1": "failed"}


def test_an_aborted_request_ends_on_both_sides(make):
    port = free_port()
    prefill = make(fake_vllm.Instance, HANDOVER, role="kv_producer", bootstrap_port=port, engine_id="life-1")
    decode = make(fake_vllm.Instance, HANDOVER, role="kv_consumer")
    params = {"do_remote_prefill": True, "remote_bootstrap_addr": f"http://127.0.0.1:{port}", "remote_engine_id": "life-1", "transfer_id": "x"}
    for name in ("d1", "d2"):
        decode.start(name, PROMPT, {**params, "transfer_id": name})
        prefill.start(f"p-{name}", PROMPT, {"do_remote_decode": True, "transfer_id": name})
    decode.step()
    prefill.step(new=(prefill.loading["p-d1"], 0, 30))
    prefill.finish("p-d1", "FINISHED_ABORTED")
    prefill.step()
    decode.run_until(lambda: "d1" in decode.results)
    assert decode.results["d1"] == "failed" and len(prefill.free) == 32 - 5
    request = decode.loading["d2"]
    decode.scheduler.request_finished(request, request.blocks)  # its blocks are free when the worker says so
    decode.run_until(lambda: "d2" in decode.results)


def test_an_engine_that_restarted_is_not_taken_for_the_old_one(make):
    port = free_port()
    make(fake_vllm.Instance, HANDOVER, role="kv_producer", bootstrap_port=port, engine_id="life-2")
    decode = make(fake_vllm.Instance, HANDOVER, role="kv_consumer")
    decode.start("d1", PROMPT, {"do_remote_prefill": True, "remote_bootstrap_addr": f"http://127.0.0.1:{port}", "remote_engine_id": "life-1",
                                "transfer_id": "x"})
    decode.run_until(lambda: decode.results)
    assert decode.results == {"d1": "failed"}
    assert "life-2: it has restarted" in decode.workers[0]._worker.errors[0]


# ---- prefixes in the store


@pytest.fixture
def pool(monkeypatch):
    master = Master()
    node = open_store(master.address)
    monkeypatch.setenv("MOONCAKE_MASTER", master.address)
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    yield node
    node.close()
    master.stop()


def test_what_one_parallelism_stored_another_one_reads(make, pool):
    options = {"store_tensor_parallelisms": [1, 2, 4]}
    first = make(Peer, kind=STORE, tp=4, **options)
    first.call("prefill", "a", PROMPT, None)
    assert first.call("settle") == 32
    second = make(fake_vllm.Instance, STORE, tp=2, **options)
    longer = PROMPT[:64] + [1, 2, 3]
    assert second.start("b", longer, None) == 64
    second.run_until(lambda: second.results)
    assert second.results == {"b": "loaded"} and second.wrong("b", 64) == 0
    second.finish("b")
    # The last token is always computed; other tokens are another prefix.
    assert second.start("c", PROMPT[:64], None) == 48
    assert second.start("d", [9] + PROMPT[1:], None) == 0


def test_stages_of_pipelines_find_what_others_stored(make, pool):
    options = {"store_stages": [2, 2]}
    first = make(fake_vllm.Instance, STORE, tp=1, pp=2, **options)
    first.prefill("a", PROMPT, None)
    first.run_until(lambda: not first.held)
    second = make(fake_vllm.Instance, STORE, tp=1, pp=1, **options)
    assert second.start("b", PROMPT, None) == 64
    second.run_until(lambda: second.results)
    assert second.results == {"b": "loaded"} and second.wrong("b", 64) == 0


def test_a_grid_of_another_kind_is_missed_and_not_misread(make, pool):
    first = make(fake_vllm.Instance, STORE, tp=1)
    first.prefill("a", PROMPT, None)
    first.run_until(lambda: not first.held)
    second = make(fake_vllm.Instance, STORE, tp=2)
    assert second.start("b", PROMPT, None) == 0


def test_a_block_that_vanishes_after_the_look_up_is_a_load_error(make, pool):
    instance = make(fake_vllm.Instance, STORE, tp=1)
    instance.prefill("a", PROMPT, None)
    instance.run_until(lambda: not instance.held)
    assert instance.start("b", PROMPT, None) == 64
    assert pool.remove_all(force=True) == 4
    instance.run_until(lambda: instance.results.get("b"))
    assert instance.results["b"] == "failed"


def test_pinned_blocks_cannot_be_removed_without_force(make, pool):
    instance = make(fake_vllm.Instance, STORE, tp=1)
    instance.prefill("a", PROMPT, None)
    instance.run_until(lambda: not instance.held)
    assert instance.start("b", PROMPT, None) == 64
    assert pool.remove_all() == 0
    instance.run_until(lambda: instance.results)
    assert instance.results == {"b": "loaded"}


def test_hashes_that_differ_between_processes_are_refused(pool, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED")
    with pytest.raises(RuntimeError, match="PYTHONHASHSEED"):
        fake_vllm.Instance(STORE)


# ---- what does not go together


@pytest.mark.parametrize("version", ["0.10.2", "nonsense"])
def test_another_vllm_is_refused_with_both_versions(version):
    fake_vllm.uninstall()
    fake_vllm.install(version)
    with pytest.raises(RuntimeError) as problem:
        import mooncake.integrations.vllm_connector  # noqa: F401
    assert version in str(problem.value) and __version__ in str(problem.value)


def test_a_vllm_that_asks_for_more_is_refused_by_name():
    fake_vllm.uninstall()
    fake_vllm.install("3.0.0", more_abstract=True)
    with pytest.raises(RuntimeError, match="vLLM 3.0.0 asks its connectors for do_something_new"):
        import mooncake.integrations.vllm_connector  # noqa: F401


@pytest.mark.parametrize("shape, axes", [
    ((2, 9, 16, 4, 8), ("part", "block", "token", "head", "channel")), ((9, 2, 16, 4, 8), ("block", "part", "token", "head", "channel")),
    ((9, 16, 4, 8), ("block", "token", "head", "channel")), ((9, 16, 8), ("block", "token", "channel"))])
def test_shapes_of_caches_are_told_apart(shape, axes):
    assert vllm_settings.axes_of(shape, 16, 4) == axes


@pytest.mark.parametrize("shape", [(2, 2, 16, 4, 8), (9, 9, 16, 4, 8), (9, 4, 16, 8), (9, 8), (2, 9, 4, 16, 8)])
def test_shapes_that_cannot_be_told_are_refused(shape):
    with pytest.raises(ValueError, match="kv_axes"):
        vllm_settings.axes_of(shape, 16, 4)
    assert vllm_settings.axes_of((9, 4, 16, 8), 16, 4, "block,head,token,channel") == ("block", "head", "token", "channel")


def test_context_parallelism_is_refused_by_name():
    settings = fake_vllm.config()
    settings.parallel_config.decode_context_parallel_size = 2
    with pytest.raises(ValueError, match="decode_context_parallel_size 2"):
        vllm_settings.settings_from(settings)


def test_memory_is_registered_once_for_all_views_of_it():
    from mooncake.integrations.handover import storages_of

    whole = np.zeros((4, 10))
    assert storages_of([whole[0], whole[1], whole.T]) == [(whole.ctypes.data, whole.nbytes)]
    assert kvplan.head_cuts_for(4, [1, 2]) == 2


def test_flags_of_other_launchers_become_those_of_the_proxy():
    assert command(["--port", "9", "--prefiller-host", "a", "b", "--prefiller-port", "1", "2", "--decoder-hosts", "::1", "--decoder-ports", "3", "4",
                    "--policy=local"]) == [
        "proxy", "--host=0.0.0.0", "--port=9", "--prefill=a:1,b:2", "--decode=[::1]:3,[::1]:4", "--dialect=vllm-pull", "--policy=local"]
    assert "--dialect=sglang" in command(["--dialect=sglang"]) and "--dialect=vllm-pull" not in command(["--dialect=sglang"])
    with pytest.raises(SystemExit, match="2 prefiller hosts, but 1 ports"):
        command(["--prefiller-host", "a", "b"])


def test_the_proxy_starts_by_the_name_that_others_know():
    process = subprocess.Popen([sys.executable, "-m", "mooncake.vllm_v1_proxy_server", "--host", "127.0.0.1", "--port", "0", "--prefiller-port", "1"],
                               stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("Proxy started on port ")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stdout.close()
