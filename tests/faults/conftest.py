# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the fault tests: processes on every path that exists between two of them on one host."""
import ctypes.util

import pytest
from process import Process

PATHS = {"tcp": {"MC_TRANSPORTS": "tcp"}, "shm": {"MC_TRANSPORTS": "shm"},
         "fabric": {"MC_TRANSPORTS": "fabric", "MOONCAKE_PROTOCOL": "fabric:tcp", "MC_FABRIC_NODES": "127.0.0.1,127.0.0.2"}}


@pytest.fixture(params=sorted(PATHS))
def path(request):
    """The name of the transport under test; nothing else is allowed in the processes made by `spawn`."""
    if request.param == "fabric" and not ctypes.util.find_library("fabric"):
        pytest.skip("there is no libfabric here")
    return request.param


@pytest.fixture
def spawn(request):
    """spawn(**environment) -> Process, ended with the test. On the path under test if the test is run per path."""
    processes = []
    base = PATHS.get(request.getfixturevalue("path"), {}) if "path" in request.fixturenames else {}

    def make(prefix=(), **env):
        process = Process(env={**base, **env}, prefix=prefix)
        processes.append(process)
        return process

    yield make
    for process in processes:
        process.__exit__()
