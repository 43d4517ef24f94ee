# SPDX-License-Identifier: Apache-2.0
"""One process of a fault test: an engine and some memory, driven by JSON lines on stdin, answering by JSON lines on stdout.

Commands that take long run beside the others; each answer carries the id of its command. What a command does is the docstring
of the method that carries it out.
"""
import ctypes
import hashlib
import json
import mmap
import os
import random
import sys
import threading
import time

from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore

WRITE, READ = "write", "read"


class Worker:
    def __init__(self):
        self.engine = None
        self.store = None
        self.memory = []
        self.batches = {}
        self.loop_stop = threading.Event()
        self.out_lock = threading.Lock()

    def answer(self, request, **fields):
        with self.out_lock:
            print(json.dumps({"id": request["id"], **fields}), flush=True)

    # ---- commands

    def init(self, host="127.0.0.1", metadata="P2PHANDSHAKE", protocol="tcp"):
        """Makes the engine."""
        self.engine = TransferEngine()
        code = self.engine.initialize(host, metadata, protocol, "")
        return {"rc": code, "port": self.engine.get_rpc_port() if code == 0 else 0, "error": self.engine.last_error()}

    def close(self):
        """Ends the engine; the memory stays."""
        self.engine.close()
        return {}

    def buffer(self, size, value=0, managed=False):
        """Registers memory filled with one byte value."""
        if managed:
            address = self.engine.allocate_managed_buffer(size)
            ctypes.memset(address, value, size)
            self.memory.append((None, address, size))
            return {"addr": address}
        area = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        ctypes.memset(address, value, size)
        self.memory.append((area, address, size))
        return {"addr": address, "rc": self.engine.register_memory(address, size)}

    def register(self, addr, size):
        return {"rc": self.engine.register_memory(addr, size)}

    def unregister(self, addr):
        started = time.monotonic()
        code = self.engine.unregister_memory(addr)
        return {"rc": code, "seconds": time.monotonic() - started}

    def fill(self, addr, size, value):
        ctypes.memset(addr, value, size)
        return {}

    def randomize(self, addr, size, seed):
        """Fills memory with reproducible noise and tells its digest."""
        ctypes.memmove(addr, random.Random(seed).randbytes(size), size)
        return self.digest(addr, size)

    def digest(self, addr, size):
        return {"digest": hashlib.blake2b(ctypes.string_at(addr, size), digest_size=16).hexdigest()}

    def values(self, addr, size):
        """Which byte values occur."""
        return {"values": sorted(set(ctypes.string_at(addr, size)))}

    def watch(self, addr, size, seconds):
        """True if no byte of the range changes for a time."""
        before = ctypes.string_at(addr, size)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if ctypes.string_at(addr, size) != before:
                return {"quiet": False}
        return {"quiet": True}

    def transfer(self, op, peer, local, remote, size):
        """One synchronous transfer."""
        call = self.engine.transfer_sync_write if op == WRITE else self.engine.transfer_sync_read
        started = time.monotonic()
        code = call(peer, local, remote, size)
        return {"rc": code, "seconds": time.monotonic() - started, "error": self.engine.last_error() if code else ""}

    def persist(self, patience, **transfer):
        """Transfers until one succeeds."""
        until = time.monotonic() + patience
        while True:
            result = self.transfer(**transfer)
            if result["rc"] == 0 or time.monotonic() > until:
                return result
            time.sleep(0.02)

    def loop(self, op, peer, local, remote, size, limit=0, stop_on_error=True):
        """Transfers again and again until stop_loop, a failure or the limit; tells how many and the longest."""
        count, longest, code, error = 0, 0.0, 0, ""
        while not self.loop_stop.is_set() and (limit == 0 or count < limit):
            result = self.transfer(op, peer, local, remote, size)
            longest = max(longest, result["seconds"])
            code, error = result["rc"], result["error"]
            if code != 0 and stop_on_error:
                break
            count += code == 0
            if count == 3:
                self.answer({"id": -1}, event="running")
        return {"count": count, "longest": longest, "rc": code, "error": error}

    def stop_loop(self):
        self.loop_stop.set()
        return {}

    def submit(self, op, peer, local, remote, size):
        call = self.engine.batch_transfer_async_write if op == WRITE else self.engine.batch_transfer_async_read
        return {"batch": call(peer, [local], [remote], [size])}

    def cancel(self, batch):
        started = time.monotonic()
        code = self.engine.cancel(batch)
        return {"rc": code, "seconds": time.monotonic() - started}

    def wait(self, batch):
        started = time.monotonic()
        code = self.engine.get_batch_transfer_status([batch])
        return {"rc": code, "seconds": time.monotonic() - started}

    def probe(self, peer):
        started = time.monotonic()
        code = self.engine.send_probe(peer)
        return {"rc": code, "seconds": time.monotonic() - started}

    def usage(self):
        """What must not grow."""
        with open("/proc/self/status") as status:
            threads = next(int(line.split()[1]) for line in status if line.startswith("Threads"))
        with open("/proc/self/maps") as maps:
            mappings = sum(1 for _ in maps)
        return {"fds": len(os.listdir("/proc/self/fd")), "threads": threads, "mappings": mappings}

    def pause(self, seconds):
        """Lets time pass, where a test observes what happens by itself."""
        time.sleep(seconds)
        return {}

    def metrics(self):
        return {"text": self.engine.get_metrics()}

    def join_pool(self, host, master, size):
        """Makes a store that lends memory."""
        self.store = MooncakeDistributedStore()
        return {"rc": self.store.setup(host, "P2PHANDSHAKE", size, 16 << 20, "tcp", "", master)}

    def call_store(self, call, *arguments, patience=0.0, wanted=0):
        """A call of the store that answers with a number; until it is the wanted one, or patience is over."""
        until = time.monotonic() + patience
        while True:
            started = time.monotonic()
            code = getattr(self.store, call)(*arguments)
            if code == wanted or time.monotonic() >= until:
                return {"rc": code, "seconds": time.monotonic() - started}
            time.sleep(0.02)

    def put(self, key, value, size, **patience):
        return self.call_store("put", key, bytes([value]) * size, **patience)

    def exist(self, key, **patience):
        return self.call_store("is_exist", key, **patience)

    def spawn_child(self, size, value):
        """Forks a process with an engine of its own that lends memory until it is killed."""
        back, there = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(back)
            child = Worker()
            info = {**child.init(), **child.buffer(size, value), "pid": os.getpid()}
            os.write(there, json.dumps(info).encode() + b"\n")
            os.close(there)
            while True:
                time.sleep(3600)
        os.close(there)
        with os.fdopen(back) as pipe:
            return json.loads(pipe.readline())

    def reap(self, pid):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return {}

    # ----

    def run_one(self, request):
        arguments = {k: v for k, v in request.items() if k not in ("id", "do")}
        try:
            self.answer(request, **getattr(self, request["do"])(**arguments))
        except Exception as failure:  # a test sees what went wrong instead of a hang
            self.answer(request, exception=repr(failure))

    def run(self):
        slow = {"transfer", "persist", "loop", "wait", "watch", "unregister", "probe", "submit", "cancel", "put", "exist"}
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] in slow:
                threading.Thread(target=self.run_one, args=(request,), daemon=True).start()
            else:
                self.run_one(request)
        os._exit(0)


if __name__ == "__main__":
    Worker().run()
