# SPDX-License-Identifier: Apache-2.0
"""What the tests of the engine share: the process at the other end, and running code in a fresh interpreter."""

from __future__ import annotations

import ctypes.util
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60  # against hangs only

# Nothing but libfabric's tcp, with two rails.
FABRIC = {"MC_TRANSPORTS": "fabric", "MOONCAKE_PROTOCOL": "fabric:tcp", "MC_FABRIC_NODES": "127.0.0.1,127.0.0.2"}
HAS_FABRIC = ctypes.util.find_library("fabric") is not None
# How to reach a peer on this host, by the name of the path: what to put into the environment of both sides, and whether the
# peer's memory is one that others can map.
PATHS = {
    "shared memory": ({}, True),
    "foreign memory": ({}, False),
    "tcp": ({"MC_TRANSPORTS": "tcp"}, False),
    "fabric": (FABRIC, False),
}


class Peer:
    """A process with an engine and one registered buffer of `size` bytes."""

    def __init__(self, size: int = 1 << 20, *, managed: bool = False, host: str = "127.0.0.1", metadata: str = "P2PHANDSHAKE",
                 protocol: str = "rdma", env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "peer_process.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, **(env or {})},
        )
        self._send({"host": host, "metadata": metadata, "protocol": protocol, "size": size, "managed": managed})
        hello = self._receive()
        assert hello["code"] == 0, hello
        self.size, self.address = hello["size"], hello["address"]
        self.name = host
        if metadata == "P2PHANDSHAKE":
            bare = host.split(":")[0] if host.count(":") == 1 else host
            self.name = f"[{bare}]:{hello['port']}" if ":" in bare else f"{bare}:{hello['port']}"

    def ask(self, call: str, **arguments: Any) -> Any:
        self._send({"call": call, **arguments})
        return self._receive()

    def read(self, offset: int, length: int) -> bytes:
        return bytes.fromhex(self.ask("read", offset=offset, length=length))

    def write(self, offset: int, data: bytes) -> None:
        assert self.ask("write", offset=offset, data=data.hex()) == 0

    def pause(self) -> None:
        """From now on it answers nothing, as a hung host."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Ends it as a program ends; its exit must be clean."""
        if self.process.poll() is not None:
            return
        self.resume()
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0

    def _send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _receive(self) -> Any:
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "the peer process does not answer"
        line = self.process.stdout.readline()
        assert line, f"the peer process ended with {self.process.wait(PATIENCE_S)}"
        return json.loads(line)


def run_python(code: str, *arguments: str, env: dict[str, str] | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter; fails on a crash, a hang or a non-zero exit."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**os.environ, **(env or {})}, cwd=HERE)
    if check:
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
