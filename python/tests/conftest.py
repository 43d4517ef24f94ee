# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Callable, Iterator

import numpy as np
import pytest

from helpers import HAS_FABRIC, PATHS, Peer
from mooncake.engine import TransferEngine
from store_helpers import Master, Memory, open_store


class Local:
    """An engine of this process with one registered buffer."""

    def __init__(self, size: int = 1 << 20, host: str = "127.0.0.1", metadata: str = "P2PHANDSHAKE") -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize(host, metadata, "rdma", "") == 0, self.engine.last_error()
        self.memory = np.zeros(size, np.uint8)
        self.address = self.memory.ctypes.data
        assert self.engine.register_memory(self.address, size) == 0
        self.name = f"{host}:{self.engine.get_rpc_port()}"


@pytest.fixture
def make_local() -> Iterator[Callable[..., Local]]:
    made: list[Local] = []

    def make(*arguments, **options) -> Local:
        made.append(Local(*arguments, **options))
        return made[-1]

    yield make
    for local in made:
        local.engine.close()


@pytest.fixture
def local(make_local) -> Local:
    return make_local()


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(*arguments, **options) -> Peer:
        made.append(Peer(*arguments, **options))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.fixture
def peer(make_peer) -> Peer:
    return make_peer()


class Pair:
    def __init__(self, local: Local, peer: Peer) -> None:
        self.local, self.peer, self.engine = local, peer, local.engine


@pytest.fixture(params=list(PATHS))
def pair(request, monkeypatch, make_local, make_peer) -> Pair:
    """Both ends, over every path there is between two processes of one host."""
    if request.param == "fabric" and not HAS_FABRIC:
        pytest.skip("libfabric is not installed")
    env, managed = PATHS[request.param]
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Pair(make_local(), make_peer(managed=managed, env=env))


@pytest.fixture
def stalling_pair(monkeypatch, make_local, make_peer) -> Pair:
    """Over a path on which a paused peer stops everything."""
    env, managed = PATHS["tcp"]
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Pair(make_local(8 << 20), make_peer(8 << 20, managed=managed, env=env))


@pytest.fixture
def pattern() -> Callable[[int, int], np.ndarray]:
    """Bytes that are different everywhere and for every seed."""
    return lambda length, seed=1: np.random.default_rng(seed).integers(0, 256, length, np.uint8)


# ---- stores


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    process = Master("--default_kv_lease_ttl=2000")
    yield process
    process.stop()


@pytest.fixture
def make_store(master) -> Iterator[Callable[..., Any]]:
    """Stores of one pool, closed at the end."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(open_store(master.address, **options))
        return made[-1]

    yield make
    for store in made:
        assert store.close() == 0


@pytest.fixture
def store(make_store) -> Any:
    return make_store()


@pytest.fixture
def memory() -> Memory:
    return Memory(4 << 20)
