# SPDX-License-Identifier: Apache-2.0
"""From construction to close: every call in every state gives an answer, never a crash."""

import gc
import json
import threading

import numpy as np
import pytest

from mooncake.engine import InnerTransferEngine, TransferEngine, TransferNotify, TransferOpcode

OURS = "127.0.0.1:1"

# What each call answers when there is no engine to ask.
ANSWERS = {
    -1: [
        ("register_memory", (4096, 4096)),
        ("unregister_memory", (4096,)),
        ("batch_register_memory", ([4096], [4096])),
        ("batch_unregister_memory", ([4096],)),
        ("transfer_sync_write", (OURS, 4096, 4096, 1)),
        ("transfer_sync_read", (OURS, 4096, 4096, 1)),
        ("transfer_sync", (OURS, 4096, 4096, 1, TransferOpcode.Read, TransferNotify("a", "b"))),
        ("batch_transfer_sync_write", (OURS, [4096], [4096], [1])),
        ("batch_transfer_sync_read", (OURS, [4096], [4096], [1])),
        ("batch_transfer_sync", (OURS, [4096], [4096], [1], TransferOpcode.Write)),
        ("get_batch_transfer_status", ([1],)),
        ("transfer_check_status", (1,)),
        ("cancel", (1,)),
        ("free_managed_buffer", (4096, 1)),
        ("send_probe", (OURS,)),
        ("warmup_efa_segment", (OURS,)),
    ],
    0: [
        ("batch_transfer_async_write", (OURS, [4096], [4096], [1])),
        ("batch_transfer_async_read", (OURS, [4096], [4096], [1])),
        ("batch_transfer_async", (OURS, [4096], [4096], [1], TransferOpcode.Write)),
        ("transfer_submit_write", (OURS, 4096, 4096, 1)),
        ("allocate_managed_buffer", (4096,)),
        ("get_first_buffer_address", (OURS,)),
    ],
    RuntimeError: [
        ("get_rpc_port", ()),
        ("get_engine", ()),
        ("get_engine_ptr", ()),
        ("get_metrics", ()),
        ("get_notifies", ()),
        ("prepare", (OURS, [4096], [4096], [1])),
    ],
}


def closed() -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    engine.close()
    return engine


def failed() -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "nonsense://x", "tcp", "") == -1
    return engine


@pytest.mark.parametrize("state", [TransferEngine, failed, closed])
@pytest.mark.parametrize("answer, name, arguments", [(answer, *call) for answer, calls in ANSWERS.items() for call in calls])
def test_call_without_a_running_engine(state, answer, name, arguments):
    engine = state()
    if answer is RuntimeError:
        with pytest.raises(RuntimeError, match="initialize|closed"):
            getattr(engine, name)(*arguments)
    else:
        assert getattr(engine, name)(*arguments) == answer
    assert engine.last_error().startswith(name)


def test_second_initialize_is_refused_and_harmless(local):
    port = local.engine.get_rpc_port()
    assert local.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert local.engine.get_rpc_port() == port
    assert local.engine.transfer_sync_write(local.name, local.address, local.address + 4096, 16) == 0


def test_failed_initialize_may_be_repeated_on_the_same_object():
    engine = failed()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    engine.close()


@pytest.mark.parametrize("arguments", [
    ("127.0.0.1", "P2PHANDSHAKE", "xgmi", ""),
    ("127.0.0.1", "nonsense://x", "tcp", ""),
    ("", "P2PHANDSHAKE", "tcp", ""),
    ("127.0.0.1:99999", "P2PHANDSHAKE", "tcp", ""),
    ("127.0.0.1", "http://127.0.0.1:1/metadata", "tcp", ""),
])
def test_initialize_answers_minus_one_and_says_why(arguments):
    engine = TransferEngine()
    assert engine.initialize(*arguments) == -1
    assert engine.last_error().startswith("initialize: ")


@pytest.mark.parametrize("protocol", ["rdma", "tcp", "efa", "ascend", "ascend_direct", "", "anything"])
def test_every_protocol_starts_on_a_machine_without_devices(protocol):
    with TransferEngine() as engine:
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "") == 0


@pytest.mark.parametrize("device", ["", None, "auto-discovery", "mlx5_0,mlx5_1"])
def test_device_names_that_are_not_here_do_not_stop_it(device):
    with TransferEngine() as engine:
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) == 0


@pytest.mark.parametrize("hostname", ["127.0.0.1", "127.0.0.1:12345", "localhost", "127.0.0.1:12345:npu_0", "[::1]:12345", "::1"])
def test_every_form_of_local_name_is_accepted(hostname):
    with TransferEngine() as engine:
        assert engine.initialize(hostname, "P2PHANDSHAKE", "tcp", "") == 0
        assert 1024 <= engine.get_rpc_port() <= 65535


def test_initialize_ext_takes_the_scheme_apart():
    with TransferEngine() as engine:
        assert engine.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", "p2p") == 0
        assert engine.allocate_managed_buffer(4096) != 0
    with TransferEngine() as engine:
        assert engine.initialize_ext("127.0.0.1", "127.0.0.1:1/metadata", "tcp", "", "http") == -1


def test_wrong_argument_types_are_type_errors():
    engine = TransferEngine()
    for arguments in [(1, "P2PHANDSHAKE", "tcp", ""), ("127.0.0.1", None, "tcp", ""), ("127.0.0.1", "P2PHANDSHAKE", b"tcp", "")]:
        with pytest.raises(TypeError):
            engine.initialize(*arguments)


def test_only_one_of_many_threads_initializes():
    engine = TransferEngine()
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [-1] * 7 + [0]
    engine.close()


def test_close_is_idempotent_and_final(local):
    local.engine.close()
    local.engine.close()
    assert local.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1


def test_close_before_initialize_is_harmless():
    TransferEngine().close()


def test_context_manager_closes_also_after_an_exception():
    with pytest.raises(KeyError):
        with TransferEngine() as engine:
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
            raise KeyError
    assert engine.send_probe(OURS) == -1


def test_timeout_is_read_when_the_object_is_made(monkeypatch):
    """A wrong value is ignored, a small one is raised to five seconds; neither stops anything."""
    for value in ["7", "1", "nonsense", ""]:
        monkeypatch.setenv("MC_TRANSFER_TIMEOUT", value)
        with TransferEngine() as engine:
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0


def test_topology_needs_no_initialize():
    before = json.loads(TransferEngine().get_local_topology())
    assert any(location.startswith("cpu:") for location in before)
    assert json.loads(TransferEngine().get_local_topology("mlx5_9")).keys() == before.keys()


def test_topology_of_a_running_engine(local):
    assert json.loads(local.engine.get_local_topology()) == json.loads(TransferEngine().get_local_topology(None))
    with pytest.raises(TypeError):
        local.engine.get_local_topology(1)


def test_inner_engine_outlives_the_object_it_came_from(make_peer):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    inner = engine.get_engine()
    assert isinstance(inner, InnerTransferEngine)
    assert engine.get_engine_ptr() != 0
    name = f"127.0.0.1:{engine.get_rpc_port()}"
    with TransferEngine() as other:
        assert other.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        del engine
        gc.collect()
        assert other.send_probe(name) == 0
        del inner
        gc.collect()
        assert other.send_probe(name) != 0


def test_objects_registered_by_a_dropped_engine_are_let_go():
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    buffer = bytearray(4096)
    assert engine.register_memory(buffer) == 0
    inner = engine.get_engine()
    del engine
    gc.collect()
    buffer.append(1)  # refused while somebody holds the memory
    del inner


def test_metrics_are_prometheus_text(local):
    assert local.engine.transfer_sync_write(local.name, local.address, local.address + 4096, 1000) == 0
    metrics = local.engine.get_metrics()
    assert "# TYPE " in metrics
    assert any(line.endswith(" 1000") for line in metrics.splitlines()), metrics


def test_last_error_belongs_to_the_thread(local):
    assert local.engine.transfer_sync_write(local.name, local.address, 1, 1) == -1
    assert local.engine.last_error().startswith("transfer_sync_write: ")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(local.engine.last_error()))
    thread.start()
    thread.join()
    assert seen == [""]


def test_two_engines_of_one_process_register_the_same_memory(make_local):
    first, second = make_local(), make_local()
    assert second.engine.register_memory(first.address, len(first.memory)) == 0
    first.memory[:16] = 7
    assert second.engine.transfer_sync_write(second.name, second.address, first.address, 16) == 0
    assert not np.any(first.memory[:16])
