# SPDX-License-Identifier: Apache-2.0
"""Drives worker.py processes from a test."""
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
PATIENCE = 60.0  # far above every deadline in these tests: only a hang reaches it


class Answer:
    """The answer to a command, when it comes."""

    def __init__(self):
        self.queue = queue.Queue()

    def get(self, timeout=PATIENCE):
        answer = self.queue.get(timeout=timeout)
        assert "exception" not in answer, answer
        return answer


class Process:
    """A worker. Ended with the `with` block, by its handle."""

    def __init__(self, env=None, prefix=()):
        self.ids = itertools.count()
        self.waiting = {}
        self.events = queue.Queue()
        environment = {**os.environ, "MC_TRANSFER_TIMEOUT": "5", **(env or {})}
        self.popen = subprocess.Popen([*prefix, sys.executable, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env=environment)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.popen.stdout:
            answer = json.loads(line)
            target = self.waiting.pop(answer["id"], None)
            (target.queue if target else self.events).put(answer)
        # Whoever waits hears that it died, instead of taking it for a hang.
        ended = {"exception": f"worker {self.popen.pid} ended with {self.popen.wait()}"}
        for queue_ in [self.events, *(answer.queue for answer in list(self.waiting.values()))]:
            queue_.put(ended)

    def start(self, do, **arguments):
        """Sends a command; the result is an Answer."""
        answer, number = Answer(), next(self.ids)
        self.waiting[number] = answer
        self.popen.stdin.write(json.dumps({"id": number, "do": do, **arguments}) + "\n")
        self.popen.stdin.flush()
        return answer

    def ask(self, do, **arguments):
        return self.start(do, **arguments).get()

    def wait_event(self, name):
        while (event := self.events.get(timeout=PATIENCE)).get("event") != name:
            assert "exception" not in event, event

    def engine(self, size, value=0, managed=False, **init):
        """init + buffer: returns (segment name, address)."""
        made = self.ask("init", **init)
        assert made["rc"] == 0, made
        address = self.ask("buffer", size=size, value=value, managed=managed)["addr"]
        host = init.get("host", "127.0.0.1")
        return f"{host}:{made['port']}", address

    @property
    def pid(self):
        return self.popen.pid

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self.popen.kill()
        self.popen.wait()
        self.popen.stdin.close()
        self.reader.join()
        self.popen.stdout.close()
