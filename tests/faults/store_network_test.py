# SPDX-License-Identifier: Apache-2.0
"""The network between a store and its master fails."""
import contextlib
import subprocess
from pathlib import Path

import mooncake
from network import Cable
from process import PATIENCE

MASTER = Path(mooncake.__file__).parent / "bin" / "mooncake_master"
MIB = 1 << 20


@contextlib.contextmanager
def master_at(cable, side):
    """Ports may be fixed: the namespace is ours."""
    process = subprocess.Popen([*cable.prefix(side), MASTER, "--port=50051", "--metrics_port=9003", "--rpc_address=0.0.0.0"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in process.stdout:
            if "Master service started" in line:
                break
        yield f"{cable.hosts[side]}:50051"
    finally:
        process.kill()
        process.communicate()


def test_a_call_whose_master_is_out_of_reach_ends_and_the_next_after_the_outage_succeeds(spawn):
    with Cable() as cable, master_at(cable, 0) as master:
        client = spawn(prefix=cable.prefix(1), MC_RPC_TIMEOUT_MS=str(int(PATIENCE) * 1000))
        assert client.ask("join_pool", host=cable.hosts[1], master=master, size=64 * MIB)["rc"] == 0
        assert client.ask("put", key="before", value=1, size=MIB)["rc"] == 0
        cable.cut()
        lost = client.ask("exist", key="unknown")
        # The kernel would repeat what nobody confirms for minutes, and the call has a minute: who gives up is the connection.
        assert lost["rc"] < 0 and lost["seconds"] < PATIENCE / 3, lost
        assert client.ask("put", key="lost", value=2, size=MIB)["rc"] < 0
        cable.mend()
        assert client.ask("exist", key="before", patience=PATIENCE / 2, wanted=1)["rc"] == 1
        assert client.ask("put", key="after", value=3, size=MIB, patience=PATIENCE / 2)["rc"] == 0
