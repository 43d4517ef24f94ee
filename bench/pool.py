# SPDX-License-Identifier: Apache-2.0
"""A pool of the store for one measurement: a master process, and a node process that lends memory."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from mooncake.store import MooncakeDistributedStore

NODE = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
disk = {"enable_ssd_offload": True, "ssd_offload_path": sys.argv[4]} if sys.argv[4:] else {}
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 0, sys.argv[3], "", sys.argv[1], **disk)
print("ready" if code == 0 else f"setup: {code}", flush=True)
sys.stdin.read()
store.close()
"""
QUIET = {"MC_LOG_LEVEL": "WARNING"}


class Pool:
    """`with Pool(bytes) as pool: store = pool.client()`"""

    def __init__(self, node_bytes: int, master_args: list[str] | None = None, protocol: str = "tcp", env: dict[str, str] | None = None,
                 python: str = sys.executable, disk: str = "") -> None:
        """`disk`: a directory for values that leave memory; the master must be told to offload."""
        self._processes: list[subprocess.Popen[str]] = []
        self._env = {**QUIET, **os.environ, **(env or {})}
        self._python = python
        self.address = ""
        try:
            self._start_master(master_args or [])
            self._start_node(node_bytes, protocol, [disk] if disk else [])
            self._bytes = node_bytes
        except BaseException:
            self.close()
            raise

    def _start_master(self, arguments: list[str]) -> None:
        command = [self._python, "-c", "from mooncake.cli import mooncake_master; mooncake_master()", "--port=0", "--metrics_port=0", *arguments]
        master = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._env)
        self._processes.append(master)
        for line in master.stdout:
            if found := re.search(r"Master service started on port (\d+)", line):
                self.address = f"127.0.0.1:{found[1]}"
                threading.Thread(target=lambda: all(True for _ in master.stdout), daemon=True).start()  # or its log would block it
                return
        raise RuntimeError(f"mooncake_master ended with {master.wait()}")

    def _start_node(self, size: int, protocol: str, disk: list[str]) -> None:
        node = subprocess.Popen([self._python, "-c", NODE, self.address, str(size), protocol, *disk], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                env=self._env)
        self._processes.append(node)
        for line in node.stdout:
            if line.strip() == "ready":
                return
            sys.stderr.write(line)
        raise RuntimeError(f"a node ended with {node.wait()}")

    def wait_for_pages(self, patience: float = 10) -> None:
        """Until the node's memory exists, as that of a pool in use does: a node makes its pages in the background."""
        status = Path(f"/proc/{self._processes[-1].pid}/status")
        end = time.monotonic() + patience
        while time.monotonic() < end:
            found = re.search(r"RssShmem:\s+(\d+) kB", status.read_text())
            if found and int(found[1]) << 10 >= 0.98 * self._bytes:
                return
            time.sleep(0.02)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def client(self, protocol: str = "tcp", buffer_bytes: int = 0) -> MooncakeDistributedStore:
        store = MooncakeDistributedStore()
        if (code := store.setup("127.0.0.1", "P2PHANDSHAKE", 0, buffer_bytes, protocol, "", self.address)) != 0:
            raise RuntimeError(f"setup: {code}")
        return store

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.stdin:
                process.stdin.close()
            else:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
