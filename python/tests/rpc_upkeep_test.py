# SPDX-License-Identifier: Apache-2.0
"""What the RPC helper leaves behind, and what its log does to the interpreter."""

import weakref

from helpers import run_python
from mooncake.engine import RpcInterface

LOG_READ_BY_OURSELVES = """
import os, threading
from mooncake.engine import RpcInterface

reading, writing = os.pipe()
os.dup2(writing, 2)  # as notebooks do


def read():
    while os.read(reading, 1000):
        pass


threading.Thread(target=read, daemon=True).start()


def fail(_):
    raise ValueError("x" * 200_000)


receiver, sender = RpcInterface(), RpcInterface()
assert receiver.initialize("127.0.0.1:0") and sender.initialize_client()
receiver.set_data_receive_callback(fail)
assert receiver.start_server_async()
assert [sender.send_data(f"127.0.0.1:{receiver.port}", b"x") for _ in range(20)] == [0] * 20
receiver.stop_server()
print("ok")
os._exit(0)
"""


def test_a_log_that_this_interpreter_reads_itself_does_not_stop_it():
    assert run_python(LOG_READ_BY_OURSELVES).stdout == "ok\n"


def test_initializing_again_and_again_leaves_nothing_behind():
    rpc = RpcInterface()
    before = len(weakref.finalize._registry)
    for _ in range(10):
        assert rpc.initialize_client()
    assert len(weakref.finalize._registry) <= before + 1
