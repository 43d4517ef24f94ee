# SPDX-License-Identifier: Apache-2.0
"""What the tests of the store share: a master process, and stores that belong to its pool."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

import mooncake
from mooncake.store import MooncakeDistributedStore

PATIENCE_S = 60  # against hangs only
PROGRAMS = Path(mooncake.__file__).resolve().parent / "bin"
MiB = 1 << 20


class Master:
    """A mooncake_master on ports of its own choice."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [str(Path(mooncake.__file__).parent / "bin" / "mooncake_master"), f"--port={port}", "--metrics_port=0", "--rpc_address=127.0.0.1",
             "--metrics_host=127.0.0.1", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.port, self.admin_port = self._read_ports()
        self.address = f"127.0.0.1:{self.port}"

    def _read_ports(self) -> tuple[int, int]:
        text, end = b"", time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            ready, _, _ = select.select([self.process.stdout], [], [], 1)
            if not ready:
                continue
            chunk = self.process.stdout.read1(4096)
            assert chunk, f"the master ended with {self.process.wait(PATIENCE_S)}:\n{text.decode()}"
            text += chunk
            found = re.search(rb"Master service started on port (\d+)", text)
            admin = re.search(rb"dashboard on http://\S*:(\d+)/", text)
            if found and admin:
                return int(found[1]), int(admin[1])
        raise AssertionError(f"the master did not start:\n{text.decode()}")

    def stop(self) -> None:
        """As an operator stops it; it must end cleanly."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        try:
            _, status = self.process.communicate(timeout=PATIENCE_S), self.process.returncode
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert status == 0, status

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


def open_store(master: str, segment: int = 64 * MiB, buffer: int = 16 * MiB, host: str = "127.0.0.1",
               kind: Callable[[], Any] = MooncakeDistributedStore, **options: Any) -> Any:
    store = kind()
    code = store.setup(host, "P2PHANDSHAKE", segment, buffer, "tcp", "", master, **options)
    assert code == 0, code
    return store


class Memory:
    """Host memory with an address."""

    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, np.uint8)
        self.address, self.size = self.array.ctypes.data, size

    def fill(self, data: bytes, offset: int = 0) -> int:
        self.array[offset:offset + len(data)] = np.frombuffer(data, np.uint8)
        return self.address + offset

    def bytes(self, offset: int, length: int) -> bytes:
        return self.array[offset:offset + length].tobytes()


def random_bytes(length: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8).tobytes()
