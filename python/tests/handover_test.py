# SPDX-License-Identifier: Apache-2.0
"""mooncake.integrations: prefill ranks announce, decode ranks read, and whatever goes wrong between them has an end and a reason."""

import asyncio
import socket
import struct
import threading
import time

import msgpack
import numpy as np
import pytest

from helpers import PATIENCE_S
from mooncake import __version__, kvplan
from mooncake.engine import TransferEngine
from mooncake.integrations.bootstrap import Bootstrap, Directory, register
from mooncake.integrations.control import PROTOCOL, LoopThread
from mooncake.integrations.source import Source
from mooncake.integrations.target import Load, LoadFailed, Target

LAYERS, HEADS, CHANNELS, TOKENS = 6, 6, 16, 50
NAMES = [f"layer.{number}" for number in range(LAYERS)]


def cells(layer: int, head: int, tokens: range, salt: int) -> np.ndarray:
    """K and V, tokens, channels, as they are everywhere."""
    at = np.arange(CHANNELS)[None, None, :] + np.array(tokens)[None, :, None] * 100 + np.arange(2)[:, None, None] * 7
    return (at + layer * 1_000_000 + head * 100_000 + salt * 13).astype(np.int64)


class Rank:
    def __init__(self, thread: LoopThread, tp: int, number: int, names, block_tokens: int) -> None:
        self.first, self.count = kvplan.heads_of_rank(HEADS, tp, number)
        self.block_tokens, self.names = block_tokens, list(names)
        self.blocks = -(-TOKENS // block_tokens) + 4
        self.memory = {name: np.full((2, self.blocks, block_tokens, self.count, CHANNELS), -1, np.int64) for name in names}
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        regions = []
        for name, memory in self.memory.items():
            assert self.engine.register_memory(memory.ctypes.data, memory.nbytes) == 0
            regions += kvplan.regions_of_tensor(memory, ("part", "block", "token", "head", "channel"), layers=[name], parts=("k", "v"),
                                                first_head=self.first, total_heads=HEADS)
        self.rank = kvplan.Rank(f"127.0.0.1:{self.engine.get_rpc_port()}", regions)

    def table(self, seed: int = 0) -> list[int]:
        return np.random.default_rng(seed).permutation(self.blocks)[: -(-TOKENS // self.block_tokens)].tolist()

    def at(self, name: str, table, head: int, tokens: range):
        places = np.array(tokens)
        return (slice(None), np.array(table)[places // self.block_tokens], places % self.block_tokens, head - self.first)

    def fill(self, name: str, table, tokens: range, salt: int = 0) -> None:
        for head in range(self.first, self.first + self.count):
            self.memory[name][self.at(name, table, head, tokens)] = cells(NAMES.index(name), head, tokens, salt)

    def wrong(self, table, tokens: range, salt: int = 0) -> int:
        return sum(
            not np.array_equal(self.memory[name][self.at(name, table, head, tokens)], cells(NAMES.index(name), head, tokens, salt))
            for name in self.names for head in range(self.first, self.first + self.count))


class Pair:
    """A prefill side of stages times ranks, and a decode side, in this process."""

    def __init__(self, stages: int = 1, p_tp: int = 2, d_tp: int = 3, **timeouts: float) -> None:
        self.thread = LoopThread("mc-test")
        share = LAYERS // stages
        self.prefill = [Rank(self.thread, p_tp, number, NAMES[stage * share:(stage + 1) * share], 16)
                        for stage in range(stages) for number in range(p_tp)]
        self.sources = [Source(self.thread, one.rank, host="127.0.0.1", **timeouts) for one in self.prefill]
        self.decode = [Rank(self.thread, d_tp, number, NAMES, 8) for number in range(d_tp)]
        self.targets = [Target(self.thread, one.engine, one.rank) for one in self.decode]

    def load(self, transfer: str = "t", first: int = 0, timeout: float = PATIENCE_S, only=None) -> None:
        async def find():
            return [source.address for source in self.sources]

        for number, (target, rank) in enumerate(zip(self.targets, self.decode)):
            if only is None or number in only:
                target.load(Load("r", transfer, find, first, TOKENS - first, [rank.table(number)], number, len(self.targets), timeout))

    def compute(self, until: int, since: int = 0, transfer: str = "t", salt: int = 0, layerwise: bool = True) -> None:
        """One step of the prefill side."""
        for name in NAMES:
            for source, rank in zip(self.sources, self.prefill):
                if name in rank.names:
                    rank.fill(name, rank.table(salt), range(since, until), salt)
                    if layerwise:
                        source.ready(transfer, [rank.table(salt)], until, layers=[name])
        if not layerwise:
            for source, rank in zip(self.sources, self.prefill):
                source.ready(transfer, [rank.table(salt)], until)

    def loaded(self, number: int = 0):
        return wait_for(lambda: self.targets[number].take_finished())[0]

    def sent(self, number: int = 0) -> dict:
        return wait_for(lambda: self.sources[number].take_finished())

    def wrong(self, first: int = 0, salt: int = 0) -> int:
        return sum(rank.wrong(rank.table(number), range(first, TOKENS), salt) for number, rank in enumerate(self.decode))

    def close(self) -> None:
        for part in (*self.targets, *self.sources):
            part.close()
        self.thread.close()
        for rank in (*self.prefill, *self.decode):
            rank.engine.close()


def wait_for(look):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.002)
    raise AssertionError("it did not come to pass")


@pytest.fixture
def make():
    made = []

    def pair(*arguments, **options):
        made.append(Pair(*arguments, **options))
        return made[-1]

    yield pair
    for one in made:
        one.close()


@pytest.mark.parametrize("stages, p_tp, d_tp", [(1, 2, 3), (3, 1, 2), (2, 3, 1), (1, 12, 2), (1, 2, 12)])
@pytest.mark.parametrize("reader_first", [True, False])
def test_layers_of_chunks_are_read_as_they_are_computed(make, stages, p_tp, d_tp, reader_first):
    pair = make(stages, p_tp, d_tp)
    if reader_first:
        pair.load()
    pair.compute(21)
    pair.compute(TOKENS, since=21)
    if not reader_first:
        pair.load()
    for source in pair.sources:
        source.hold("t")
    assert all(pair.loaded(number).error == "" for number in range(d_tp))
    assert pair.wrong() == 0
    assert all(pair.sent(number) == {"t": ""} for number in range(len(pair.sources)))


def test_what_is_here_already_is_not_read(make):
    pair = make(1, 2, 1)
    pair.compute(TOKENS, layerwise=False)
    pair.load(first=24)
    outcome = pair.loaded()
    assert outcome.error == "" and outcome.steps == LAYERS
    assert outcome.bytes == (TOKENS - 24) * LAYERS * 2 * HEADS * CHANNELS * 8
    assert pair.wrong(first=24) == 0
    assert pair.decode[0].wrong(pair.decode[0].table(0), range(0, 24)) == LAYERS * HEADS


def test_a_prefill_that_begins_anew_is_read_anew(make):
    """Its first blocks are somebody else's by then."""
    pair = make(1, 2, 2)
    pair.load()
    pair.compute(30, salt=0)
    for source in pair.sources:
        source.restart("t")
    for rank in pair.prefill:
        for memory in rank.memory.values():
            memory[:] = -5
    pair.compute(TOKENS, salt=1)
    assert [pair.loaded(number).error for number in range(2)] == ["", ""]
    assert pair.wrong(salt=1) == 0


def test_a_restart_between_reading_and_confirmation_is_noticed(make):
    """The reader of one rank waits for the other, which is told late; meanwhile everything begins anew."""
    pair = make(1, 1, 1)
    pair.load()
    pair.compute(TOKENS)
    pair.thread.call(pair.sources[0]._restart, "t")  # whether before or after `done`, the outcome is right or an error
    pair.compute(TOKENS, salt=1)
    outcome = pair.loaded()
    assert outcome.error or pair.wrong(salt=0) == 0 or pair.wrong(salt=1) == 0


def test_a_request_that_is_dropped_fails_its_readers_at_once(make):
    pair = make()
    pair.load()
    pair.compute(10)
    for source in pair.sources:
        source.drop("t", "the request was aborted")
    assert all("aborted" in pair.loaded(number).error for number in range(3))
    assert all(source.take_finished() == {} for source in pair.sources)


def test_blocks_that_nobody_reads_are_free_after_a_while(make):
    pair = make(attach_timeout=0.05)
    pair.compute(TOKENS)
    pair.sources[0].hold("t")
    assert "no reader came" in pair.sent()["t"]
    pair.load(only=[0])
    assert "no reader came" in pair.loaded().error  # late, and told so instead of waiting


def test_blocks_whose_readers_do_not_come_to_an_end_are_free_after_a_while(make):
    pair = make(1, 1, 2, handover_timeout=0.3)
    pair.compute(TOKENS)
    pair.load(only=[1])
    assert pair.loaded(1).error == ""
    pair.sources[0].hold("t")
    assert "did not finish" in pair.sent()["t"]


def test_a_load_ends_in_time_and_leaves(make):
    pair = make(1, 1, 1)
    pair.compute(10)
    pair.load(timeout=0.2)
    assert "0.2 s" in pair.loaded().error
    pair.sources[0].hold("t")
    assert pair.sent() == {"t": ""}  # the reader said that it has left


def test_a_cancelled_load_moves_nothing_more(make):
    pair = make(1, 1, 1)
    pair.compute(10)
    pair.load()
    pair.targets[0].cancel("r")
    assert pair.loaded().error == "cancelled"
    before = {name: memory.copy() for name, memory in pair.decode[0].memory.items()}
    pair.compute(TOKENS)
    assert all(np.array_equal(memory, before[name]) for name, memory in pair.decode[0].memory.items())


def test_a_load_that_is_cancelled_before_it_began_is_reported_all_the_same(make):
    """Its blocks would be held for ever otherwise."""
    pair = make(1, 1, 1)

    async def find():
        raise AssertionError("it never began")

    def both() -> None:
        pair.targets[0]._load(Load("r", "t", find, 0, TOKENS, [pair.decode[0].table()]))
        pair.targets[0]._cancel("r")

    pair.thread.call(both)
    assert pair.loaded().error == "cancelled"


def test_sides_that_do_not_fit_together_say_where(make):
    pair = make(1, 2, 1)
    pair.sources.pop()  # the second half of the heads is nowhere
    pair.compute(TOKENS)
    pair.load()
    assert "has no source" in pair.loaded().error


def test_a_lost_prefill_rank_is_noticed_at_once(make):
    pair = make(1, 1, 1)
    pair.compute(10)
    pair.load()
    wait_for(lambda: "t" in pair.sources[0]._transfers and pair.sources[0]._transfers["t"].readers)
    started = time.monotonic()
    for link in list(pair.sources[0]._transfers["t"].readers.values()):
        pair.thread.call(link.writer.transport.abort)
    assert "prefill rank 127.0.0.1" in pair.loaded().error
    assert time.monotonic() - started < PATIENCE_S / 2


# ---- what a peer may say


def raw(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def say(connection: socket.socket, message) -> None:
    body = msgpack.packb(message)
    connection.sendall(struct.pack(">I", len(body)) + body)


def hear(connection: socket.socket):
    def exactly(count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = connection.recv(count - len(got))
            if not more:
                raise EOFError
            got += more
        return got

    return msgpack.unpackb(exactly(struct.unpack(">I", exactly(4))[0]))


def test_another_version_is_refused_with_both_named(make):
    pair = make(1, 1, 1)
    with raw(pair.sources[0].address) as connection:
        say(connection, {"hello": 99, "version": "9.9"})
        text = hear(connection)["refused"]
        assert "9.9" in text and __version__ in text and "99" in text and str(PROTOCOL) in text


def test_a_prefill_rank_of_another_version_is_refused_by_the_reader(make):
    pair = make(1, 1, 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            connection, _ = server.accept()
            with connection:
                hear(connection)
                say(connection, {"hello": 99, "version": "9.9"})

        thread = threading.Thread(target=answer)
        thread.start()

        async def find():
            return [f"127.0.0.1:{server.getsockname()[1]}"]

        pair.targets[0].load(Load("r", "t", find, 0, TOKENS, [pair.decode[0].table()]))
        error = pair.loaded().error
        assert "9.9" in error and __version__ in error
        thread.join()


@pytest.mark.parametrize("message", [
    b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 1 << 31), struct.pack(">I", 3) + b"\xc1\xc1\xc1", struct.pack(">I", 1) + b"\x01", b"\x00\x00"])
def test_nonsense_costs_only_its_own_connection(make, message):
    pair = make(1, 1, 1)
    with raw(pair.sources[0].address) as connection:
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    pair.compute(TOKENS)
    pair.load()
    assert pair.loaded().error == ""


@pytest.mark.parametrize("message", [
    {"attach": "t", "reader": 5, "readers": 2}, {"attach": "t", "reader": "x", "readers": 1}, {"attach": "t"}, {"done": "t"}, {"leave": "t", "reader": None}])
def test_messages_without_sense_cost_only_their_own_connection(make, message):
    pair = make(1, 1, 1)
    with raw(pair.sources[0].address) as connection:
        say(connection, {"hello": PROTOCOL, "version": "x"})
        assert hear(connection)["hello"] == PROTOCOL
        say(connection, message)
        connection.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            while True:
                hear(connection)
    pair.compute(TOKENS)
    pair.load()
    assert pair.loaded().error == ""


def test_whoever_comes_to_confirm_too_late_learns_it(make):
    pair = make(1, 1, 1)
    pair.compute(TOKENS)
    with raw(pair.sources[0].address) as connection:
        say(connection, {"hello": PROTOCOL, "version": "x"})
        hear(connection)
        say(connection, {"attach": "t", "reader": 0, "readers": 1})
        assert hear(connection)["layers"] == dict.fromkeys(NAMES, TOKENS)
        pair.sources[0].drop("t", "given away")
        assert hear(connection) == {"failed": "t", "reason": "given away"}
        say(connection, {"done": "t", "reader": 0, "generation": 0})
        assert hear(connection) == {"confirmed": "t", "held": False}


# ---- where ranks are


def test_ranks_are_found_by_the_engine_they_belong_to():
    thread = LoopThread("mc-test")
    try:
        server = Bootstrap(thread, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.port}"
        directory = Directory()

        def find(engine: str):
            return thread.start(directory.find(url, engine)).result(PATIENCE_S)

        def add(engine: str, number: int, world: int = 2, dp_rank: int = 0):
            thread.start(register(url, engine_id=engine, dp_rank=dp_rank, number=number, world=world, address=f"h:{number}")).result(PATIENCE_S)

        add("a", 1)
        with pytest.raises(LoadFailed, match="1 of 2 ranks"):
            find("a")
        add("a", 0)
        add("b", 0, world=1, dp_rank=1)
        assert find("a") == ["h:0", "h:1"] and find("b") == ["h:0"]
        add("c", 0, world=1)
        with pytest.raises(LoadFailed, match="no engine x but b, c: it has restarted"):
            find("x")
        server.close()
        with pytest.raises(LoadFailed, match="did not say"):
            find("y")
    finally:
        thread.close()


def test_registrations_without_sense_are_refused():
    thread = LoopThread("mc-test")
    try:
        server = Bootstrap(thread, "127.0.0.1", 0)
        import requests

        url = f"http://127.0.0.1:{server.port}"
        good = {"engine_id": "a", "address": "h:1", "dp_rank": 0, "number": 0, "world": 1}
        for bad in ("[]", "{", "{}", *(str({**good, "number": 7}).replace("'", '"') for _ in range(1))):
            assert requests.post(f"{url}/register", data=bad, timeout=PATIENCE_S).status_code == 400
        assert requests.get(f"{url}/query", timeout=PATIENCE_S).json() == {}
        server.close()
    finally:
        thread.close()


def test_an_event_of_a_device_comes_before_the_announcement(make):
    pair = make(1, 1, 1)
    pair.load()
    gate = threading.Event()

    class DeviceEvent:
        def synchronize(self) -> None:
            gate.wait(PATIENCE_S)

    pair.sources[0].ready("t", [pair.prefill[0].table()], TOKENS, event=DeviceEvent())
    pair.sources[0].hold("t")
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0), pair.thread.loop).result() is None
    assert pair.targets[0].take_finished() == [] and pair.sources[0].take_finished() == {}
    for name in NAMES:
        pair.prefill[0].fill(name, pair.prefill[0].table(), range(TOKENS))
    gate.set()
    assert pair.loaded().error == ""
    assert pair.wrong() == 0
