# SPDX-License-Identifier: Apache-2.0
"""Bytes and tensors to a callback in another process."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import os
import queue
import random
import socket
import subprocess
import sys
import threading
from typing import Any, Callable, Iterator

import numpy as np
import pytest

import fake_torch
from helpers import PATIENCE_S, run_python
from mooncake import _rpc_server, engine
from mooncake._rpc_frames import data_header
from mooncake.engine import CoroRPCInterface, ReceivedData, ReceivedTensor, RpcInterface, create_rpc_client, create_rpc_server


class Receiver:
    """A started interface and what it got."""

    def __init__(self, **options: Any) -> None:
        self.rpc, self.got = RpcInterface(), queue.Queue()
        assert self.rpc.initialize("127.0.0.1:0", **options)
        self.rpc.set_data_receive_callback(self.got.put)
        assert self.rpc.start_server_async()
        self.address = f"127.0.0.1:{self.rpc.port}"

    def next(self) -> Any:
        return self.got.get(timeout=PATIENCE_S)


@pytest.fixture
def make_receiver() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(**options: Any) -> Receiver:
        made.append(Receiver(**options))
        return made[-1]

    yield make
    for receiver in made:
        receiver.rpc.stop_server()


@pytest.fixture
def receiver(make_receiver) -> Receiver:
    return make_receiver()


@pytest.fixture
def sender() -> RpcInterface:
    return create_rpc_client()


@pytest.fixture
def torch(monkeypatch):
    if importlib.util.find_spec("torch"):
        import torch as real

        return real
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    return fake_torch


# ---- surface


def test_names_and_defaults_are_those_that_callers_know():
    known = {
        "initialize": [("listen_address", ""), ("thread_count", 0), ("timeout_seconds", 30), ("pool_size", 100)],
        "initialize_client": [("pool_size", 100), ("timeout_seconds", 30)],
        "initialize_server": [("listen_address", None), ("thread_count", 8), ("timeout_seconds", 30)],
        "start_server": [], "start_server_async": [], "stop_server": [],
        "send_data": [("target_address", None), ("data", None)],
        "send_data_async": [("target_address", None), ("data", None), ("loop", None)],
        "send_tensor": [("target_address", None), ("tensor", None)],
        "send_tensor_async": [("target_address", None), ("tensor", None), ("loop", None)],
        "set_data_receive_callback": [("callback", None)], "set_tensor_receive_callback": [("callback", None)],
    }
    for name, expected in known.items():
        parameters = list(inspect.signature(getattr(RpcInterface, name)).parameters.values())[1:]
        assert [(p.name, None if p.default is p.empty else p.default) for p in parameters] == expected
    assert {name for name in vars(RpcInterface) if not name.startswith("_")} == set(known) | {"port"}
    assert CoroRPCInterface is RpcInterface and RpcInterface.__module__ == "mooncake.engine"
    for factory in (create_rpc_client, create_rpc_server):
        assert [(p.name, p.default) for p in inspect.signature(factory).parameters.values()] == [("local_rank", 0), ("world_size", 1)]


def test_importing_the_engine_imports_nothing_of_this():
    code = """
import sys, mooncake.engine
print({"torch", "numpy", "socket", "mooncake._rpc"} & set(sys.modules), "RpcInterface" in dir(mooncake.engine))
from mooncake.engine import RpcInterface
print({"torch", "numpy", "asyncio", "concurrent.futures"} & set(sys.modules), mooncake.engine.RpcInterface is RpcInterface)
"""
    assert run_python(code).stdout.splitlines() == ["set() True"] * 2
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        engine.Nothing


def test_what_arrives_is_made_by_the_receiver_only():
    for kind in (ReceivedData, ReceivedTensor):
        with pytest.raises(TypeError):
            kind()


# ---- data


@pytest.mark.parametrize("data", [b"hello", b"", bytearray(b"ba"), memoryview(b"view"), np.arange(3, dtype=np.int32), b"x" * 70_000,
                                  os.urandom(5 << 20)],
                         ids=["bytes", "empty", "bytearray", "memoryview", "array", "two parts", "large"])
def test_bytes_arrive(receiver, sender, data):
    assert sender.send_data(receiver.address, data) == 0
    got = receiver.next()
    assert set(got) == {"source", "data"} and type(got["data"]) is bytes
    assert got["data"] == bytes(memoryview(data).cast("B"))
    assert got["source"].startswith("127.0.0.1:")


@pytest.mark.parametrize("data", ["text", 3, None, [1], np.arange(6, dtype=np.uint8)[::2], memoryview(b"abcdef")[::2]], ids=str)
def test_what_is_not_bytes_is_a_type_error(receiver, sender, data):
    with pytest.raises(TypeError):
        sender.send_data(receiver.address, data)
    with pytest.raises(TypeError):
        sender.send_data(3, b"x")


@pytest.mark.parametrize("address", ["nonsense", "", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1: 1", "::1:80",
                                     "[::1]", "a..b:80", "127.0.0.1:٣"])
def test_sending_to_what_is_no_address_fails(sender, address):
    assert sender.send_data(address, b"x") == -1


def test_sending_to_nobody_fails_and_then_works_once_somebody_is_there(sender):
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    address = f"127.0.0.1:{port}"
    assert sender.send_data(address, b"x") == -1
    late = RpcInterface()
    assert late.initialize_server(address) and late.start_server_async()
    assert sender.send_data(address, b"x") == 0
    late.stop_server()
    assert sender.send_data(address, b"x") == -1
    assert late.start_server_async()  # the connection that the sender had kept is not used
    assert sender.send_data(address, b"x") == 0
    late.stop_server()


def test_ipv6(sender):
    rpc, got = RpcInterface(), queue.Queue()
    assert rpc.initialize_server("[::1]:0")
    rpc.set_data_receive_callback(got.put)
    if not rpc.start_server_async():
        pytest.skip("no IPv6 here")
    assert sender.send_data(f"[::1]:{rpc.port}", b"six") == 0
    assert got.get(timeout=PATIENCE_S)["source"].startswith("[::1]:")
    rpc.stop_server()


def test_an_interface_may_send_to_itself_and_between_two_of_one_process(make_receiver):
    one, other = make_receiver(), make_receiver()
    assert one.rpc.send_data(one.address, b"own") == 0 and other.rpc.send_data(one.address, b"other") == 0
    assert {one.next()["data"], one.next()["data"]} == {b"own", b"other"}


@pytest.mark.parametrize("problem", [ValueError("bad callback"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_a_callback_that_fails_or_is_missing_harms_nobody(receiver, sender, problem):
    def fail(_):
        raise problem

    receiver.rpc.set_data_receive_callback(fail)
    assert sender.send_data(receiver.address, b"x") == 0
    receiver.rpc.set_data_receive_callback(receiver.got.put)
    assert sender.send_data(receiver.address, b"y") == 0
    assert receiver.next()["data"] == b"y"
    silent = RpcInterface()
    assert silent.initialize_server("127.0.0.1:0") and silent.start_server_async()
    assert sender.send_data(f"127.0.0.1:{silent.port}", b"x") == 0
    silent.stop_server()


def test_a_timeout_without_end_is_a_long_one(receiver):
    rpc = RpcInterface()
    assert rpc.initialize_client(timeout_seconds=10**30) and rpc.send_data(receiver.address, b"x") == 0


@pytest.mark.parametrize("callback", [None, 3, "x"])
def test_what_cannot_be_called_is_no_callback(callback):
    for name in ("data", "tensor"):
        with pytest.raises(TypeError):
            getattr(RpcInterface(), f"set_{name}_receive_callback")(callback)


def test_a_callback_may_send_to_its_own_server(receiver, sender):
    def forward(message):
        if message["data"] == b"first":
            assert receiver.rpc.send_data(receiver.address, b"second") == 0
        receiver.got.put(message)

    receiver.rpc.set_data_receive_callback(forward)
    assert sender.send_data(receiver.address, b"first") == 0
    assert [receiver.next()["data"], receiver.next()["data"]] == [b"second", b"first"]


def test_many_threads_share_one_connection_each_in_turn(make_receiver):
    receiver, sender = make_receiver(thread_count=2), RpcInterface()
    sender.initialize_client(pool_size=1)
    sources = set()
    receiver.rpc.set_data_receive_callback(lambda message: (sources.add(message["source"]), receiver.got.put(message["data"])))
    codes: list[int] = []

    def send(name: int) -> None:
        codes.extend(sender.send_data(receiver.address, b"%d" % (name * 100 + i)) for i in range(20))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert codes == [0] * 160
    assert {receiver.next() for _ in range(160)} == {b"%d" % (name * 100 + i) for name in range(8) for i in range(20)}
    assert len(sources) == 1


def test_a_receiver_that_does_not_answer_costs_the_timeout(sender):
    rpc = RpcInterface()
    rpc.initialize_client(timeout_seconds=1, pool_size=1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        assert rpc.send_data(address, b"x") == -1
        assert rpc.send_data(address, bytes(64 << 20)) == -1  # more than its buffers take


def test_an_answer_in_another_language_is_a_failure(sender):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        def answer():
            peer, _ = stranger.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert sender.send_data(f"127.0.0.1:{stranger.getsockname()[1]}", b"x") == -1
        thread.join(PATIENCE_S)


# ---- tensors


@pytest.mark.parametrize("name, shape", [("float32", (2, 3)), ("float16", (4,)), ("float64", (1,)), ("int8", (3,)), ("int16", (3,)),
                                         ("int32", (3,)), ("int64", (3,)), ("uint8", (3,)), ("bool", (2,)), ("float32", ()),
                                         ("float32", (0, 3)), ("int8", (1, 2, 1, 2, 1, 2))])
def test_tensors_arrive(receiver, sender, torch, name, shape):
    tensor = torch.zeros(24, dtype=getattr(torch, name))[:int(np.prod(shape))].reshape(shape)
    receiver.rpc.set_tensor_receive_callback(receiver.got.put)
    assert sender.send_tensor(receiver.address, tensor) == 0
    got = receiver.next()
    size = int(np.prod(shape)) * np.dtype(name).itemsize
    assert type(got) is ReceivedTensor and got.dtype == name and got.shape == list(shape)
    assert got.total_bytes == got.get_data_size() == size and got.get_data_as_bytes() == bytes(got.get_memory_view()) == bytes(size)
    assert got.source_address.startswith("127.0.0.1:")


def test_a_tensor_that_is_not_contiguous_arrives_in_order(receiver, sender, torch):
    receiver.rpc.set_tensor_receive_callback(receiver.got.put)
    assert sender.send_tensor(receiver.address, torch.arange(6, dtype=torch.int32).reshape((2, 3)).t()) == 0
    got = receiver.next()
    assert got.shape == [3, 2] and np.frombuffer(got.get_memory_view(), np.int32).tolist() == [0, 3, 1, 4, 2, 5]


def test_a_tensor_goes_to_the_data_callback_where_there_is_no_other(receiver, sender, torch):
    assert sender.send_tensor(receiver.address, torch.arange(2, dtype=torch.int8)) == 0
    assert receiver.next()["data"] == b"\0\1"


def test_the_memory_lives_as_long_as_a_view_of_it(receiver, sender, torch):
    receiver.rpc.set_tensor_receive_callback(receiver.got.put)
    assert sender.send_tensor(receiver.address, torch.zeros(1 << 20, dtype=torch.uint8)) == 0
    view = receiver.next().get_memory_view()
    receiver.rpc.stop_server()
    gc.collect()
    assert bytes(view) == bytes(1 << 20)
    assert np.frombuffer(view, np.uint8).flags.writeable


@pytest.mark.parametrize("value", [np.zeros(3), "a", None, 3], ids=str)
def test_what_is_no_tensor_is_not_sent(receiver, sender, value):
    assert sender.send_tensor(receiver.address, value) == -1


# ---- asyncio


def test_futures_belong_to_the_loop_that_was_given(receiver, sender, torch):
    async def main():
        loop = asyncio.get_running_loop()
        futures = [sender.send_data_async(receiver.address, b"%d" % i, loop) for i in range(50)]
        futures.append(sender.send_tensor_async(receiver.address, torch.zeros(2, dtype=torch.int8), loop))
        assert all(isinstance(future, asyncio.Future) and future.get_loop() is loop for future in futures)
        assert await asyncio.gather(*futures) == [0] * 51
        assert await sender.send_tensor_async(receiver.address, "no tensor", loop) == -1
        assert await sender.send_data_async("nowhere", b"x", loop) == -1
        assert await RpcInterface().send_data_async(receiver.address, b"x", loop) == -1
        with pytest.raises(TypeError):
            sender.send_data_async(receiver.address, "text", loop)
        for wrong in (None, 5):
            with pytest.raises(TypeError):
                sender.send_data_async(receiver.address, b"x", wrong)

    asyncio.run(main())
    assert len({receiver.next()["data"] for _ in range(51)}) == 51


def test_another_thread_may_ask_for_a_future_of_the_loop(receiver, sender):
    loop = asyncio.new_event_loop()
    made: queue.Queue[asyncio.Future[int]] = queue.Queue()
    thread = threading.Thread(target=lambda: made.put(sender.send_data_async(receiver.address, b"x", loop)))
    thread.start()
    assert loop.run_until_complete(made.get(timeout=PATIENCE_S)) == 0
    thread.join(PATIENCE_S)
    loop.close()


# ---- life


def test_nothing_works_before_it_is_initialized():
    rpc = RpcInterface()
    assert rpc.send_data("127.0.0.1:1", b"x") == -1 and rpc.send_tensor("127.0.0.1:1", 1) == -1
    assert rpc.start_server() is False and rpc.start_server_async() is False and rpc.stop_server() is None and rpc.port == 0


def test_an_interface_for_sending_cannot_listen():
    rpc = RpcInterface()
    assert rpc.initialize() is True and rpc.start_server_async() is False
    assert rpc.initialize_client(0, 0) is True and rpc.start_server() is False


@pytest.mark.parametrize("call, options", [("initialize_server", {"thread_count": -1}), ("initialize_server", {"timeout_seconds": -1}),
                                           ("initialize_client", {"pool_size": -1}), ("initialize_client", {"pool_size": 1.5}),
                                           ("initialize", {"pool_size": "x"})])
def test_impossible_settings_are_type_errors(call, options):
    with pytest.raises(TypeError):
        getattr(RpcInterface(), call)(*(["127.0.0.1:0"] if call == "initialize_server" else []), **options)
    with pytest.raises(TypeError):
        RpcInterface().initialize_server(8080)
    with pytest.raises(TypeError):
        create_rpc_client(local_rank=-1)


@pytest.mark.parametrize("address", ["nonsense", "192.0.2.1:80", "127.0.0.1:99999", ""])
def test_what_cannot_be_listened_on_is_found_at_the_start(address):
    rpc = RpcInterface()
    assert rpc.initialize_server(address) is True
    assert rpc.start_server_async() is False and rpc.start_server() is False


def test_a_port_serves_one_and_a_running_server_is_not_started_or_changed(receiver):
    other = RpcInterface()
    assert other.initialize_server(receiver.address) and other.start_server_async() is False
    assert receiver.rpc.start_server_async() is False
    assert receiver.rpc.initialize("127.0.0.1:0") is False
    receiver.rpc.stop_server()
    assert other.start_server_async() is True
    other.stop_server()


def test_the_blocking_start_returns_when_stopped(sender):
    rpc, started = RpcInterface(), threading.Event()
    rpc.initialize_server("127.0.0.1:0")
    result: list[bool] = []
    thread = threading.Thread(target=lambda: (started.set(), result.append(rpc.start_server())))
    thread.start()
    started.wait(PATIENCE_S)
    while not rpc.port:
        assert thread.is_alive()
    assert sender.send_data(f"127.0.0.1:{rpc.port}", b"x") == 0
    rpc.stop_server()
    thread.join(PATIENCE_S)
    assert result == [True]


def test_stop_waits_for_the_callback_that_runs(receiver, sender):
    entered, leave, over = threading.Event(), threading.Event(), []

    def slow(_):
        entered.set()
        leave.wait(PATIENCE_S)
        over.append(True)

    receiver.rpc.set_data_receive_callback(slow)
    codes: list[int] = []
    sending = threading.Thread(target=lambda: codes.append(sender.send_data(receiver.address, b"x")))
    sending.start()
    assert entered.wait(PATIENCE_S)
    stopping = threading.Thread(target=lambda: (receiver.rpc.stop_server(), over.append("stopped")))
    stopping.start()
    leave.set()
    stopping.join(PATIENCE_S)
    sending.join(PATIENCE_S)
    assert over == [True, "stopped"] and codes == [0]


def test_a_callback_may_stop_its_own_server(receiver, sender):
    receiver.rpc.set_data_receive_callback(lambda _: receiver.rpc.stop_server())
    assert sender.send_data(receiver.address, b"x") == 0
    receiver.rpc._server.stopped.wait(PATIENCE_S)
    assert receiver.rpc.port == 0 and sender.send_data(receiver.address, b"x") == -1


def test_stop_in_the_midst_of_a_message_ends_the_sender(make_receiver):
    receiver, sender = make_receiver(), create_rpc_client()
    with socket.create_connection(("127.0.0.1", receiver.rpc.port)) as half:
        half.sendall(data_header(1 << 20) + bytes(1000))
        receiver.rpc.stop_server()
        half.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionError):
            while half.recv(1):
                pass
            raise ConnectionError
    assert sender.send_data(receiver.address, b"x") == -1


def state() -> tuple[int, list[str]]:
    gc.collect()
    opened = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
    return threading.active_count(), sorted(kind.split(":")[0] for kind in opened)


def test_neither_threads_nor_descriptors_are_left(torch):
    before = state()
    for way in range(3):
        receiver, sender = Receiver(), create_rpc_client()
        assert sender.send_data(receiver.address, b"x") == 0 == sender.send_tensor(receiver.address, torch.zeros(1 << 20, dtype=torch.uint8))

        async def main():
            assert await sender.send_data_async(receiver.address, b"x", asyncio.get_running_loop()) == 0

        asyncio.run(main())
        executor = sender._executor
        if way:
            receiver.rpc.stop_server()
        server = receiver.rpc._server
        del receiver, sender, main
        gc.collect()
        assert server.stopped.wait(PATIENCE_S)
        executor.shutdown()
        del server, executor
    assert state() == before


@pytest.mark.parametrize("end", ["", "rpc.stop_server()", "del rpc", "import os; os.kill(os.getpid(), 9)"])
def test_a_program_ends_with_its_server_running(end):
    done = run_python(f"""
from mooncake.engine import RpcInterface, create_rpc_client
rpc = RpcInterface()
assert rpc.initialize("127.0.0.1:0") and rpc.start_server_async()
rpc.set_data_receive_callback(lambda message: print(message["data"], flush=True))
assert create_rpc_client().send_data(f"127.0.0.1:{{rpc.port}}", b"x") == 0
{end}
""", check=False)
    assert (done.returncode, done.stdout) == (-9 if "kill" in end else 0, "b'x'\n")


def test_a_forked_child_has_nothing_of_the_parent_s(receiver, sender):
    assert sender.send_data(receiver.address, b"parent") == 0
    child = os.fork()
    if child == 0:
        good = receiver.rpc.port == 0 and sender.send_data(receiver.address, b"child") == 0
        receiver.rpc.stop_server()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sender.send_data(receiver.address, b"parent again") == 0
    assert [receiver.next()["data"] for _ in range(3)] == [b"parent", b"child", b"parent again"]


def test_two_processes_talk_both_ways(receiver, torch):
    code = """
import sys
from mooncake.engine import RpcInterface
rpc = RpcInterface()
assert rpc.initialize("127.0.0.1:0") and rpc.start_server_async()
rpc.set_data_receive_callback(lambda message: rpc.send_data(sys.argv[1], b"echo " + message["data"]))
print(rpc.port, flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", code, receiver.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address = f"127.0.0.1:{int(other.stdout.readline())}"
        assert receiver.rpc.send_data(address, b"hello") == 0
        assert receiver.next()["data"] == b"echo hello"
        other.kill()
        other.wait(PATIENCE_S)
        assert receiver.rpc.send_data(address, b"hello") == -1
    finally:
        other.kill()
        other.communicate()


def test_the_factories_make_what_they_say(monkeypatch):
    assert create_rpc_client(3, 4).start_server_async() is False
    assert create_rpc_server(local_rank=3, world_size=4)._listen[0] == "0.0.0.0:8080"
    monkeypatch.setenv("MC_RPC_PROTOCOL", "rdma")
    assert RpcInterface().initialize("127.0.0.1:0") is False and RpcInterface().initialize_client() is False
    for factory in (create_rpc_client, create_rpc_server):
        with pytest.raises(RuntimeError):
            factory()


# ---- strangers


def test_strangers_are_shown_out_and_delay_nobody(make_receiver, sender):
    receiver = make_receiver(thread_count=1, timeout_seconds=1)
    silent = [socket.create_connection(("127.0.0.1", receiver.rpc.port)) for _ in range(20)]
    for index, stranger in enumerate(silent):
        stranger.settimeout(PATIENCE_S)
        stranger.sendall((data_header(1000) + b"half")[:index])
    with socket.create_connection(("127.0.0.1", receiver.rpc.port)) as rude:
        rude.settimeout(PATIENCE_S)
        rude.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            assert rude.recv(1) == b""
        except ConnectionResetError:
            pass
    assert sender.send_data(receiver.address, b"x") == 0
    for stranger in silent:  # until the timeout, not longer
        try:
            assert stranger.recv(1) == b""
        except ConnectionResetError:
            pass
        stranger.close()
    assert sender.send_data(receiver.address, b"y") == 0


def test_a_crowd_pushes_out_who_was_silent_longest(make_receiver, sender, monkeypatch):
    monkeypatch.setattr(_rpc_server, "CONNECTIONS_MAX", 4)
    receiver = make_receiver()
    crowd = [socket.create_connection(("127.0.0.1", receiver.rpc.port)) for _ in range(20)]
    assert sender.send_data(receiver.address, b"x") == 0
    assert len(receiver.rpc._server._connections) <= 4
    for stranger in crowd:
        stranger.close()


def test_a_crowd_whose_messages_are_being_dealt_with_is_not_pushed_out(make_receiver, sender, monkeypatch):
    monkeypatch.setattr(_rpc_server, "CONNECTIONS_MAX", 1)
    receiver, entered, leave, codes = make_receiver(), threading.Event(), threading.Event(), []
    receiver.rpc.set_data_receive_callback(lambda _: (entered.set(), leave.wait(PATIENCE_S)))
    first = threading.Thread(target=lambda: codes.append(sender.send_data(receiver.address, b"first")))
    first.start()
    assert entered.wait(PATIENCE_S)
    assert create_rpc_client().send_data(receiver.address, b"second") == -1
    leave.set()
    first.join(PATIENCE_S)
    assert codes == [0]


def test_random_bytes_on_the_port_close_that_connection_only(receiver, sender):
    source = random.Random(7)
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", receiver.rpc.port)) as stranger:
            stranger.sendall(source.randbytes(source.randint(1, 200)))
    assert sender.send_data(receiver.address, b"still here") == 0
    assert receiver.next()["data"] == b"still here"
