# SPDX-License-Identifier: Apache-2.0
"""Peers that come back, on the same or another port, once or a thousand times."""
import os

from death_test import retry

MIB = 1 << 20
RESTARTS = {"fabric": 30}   # a peer of libfabric's takes much longer to come up; a leak of one thing per life still shows


def test_restart_on_the_same_port_is_recognised(spawn, path):
    ours, target = spawn(), spawn()
    name, remote = target.engine(4 * MIB)
    _, local = ours.engine(4 * MIB, value=7)
    assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=4 * MIB)["rc"] == 0
    for value in range(1, 6):
        target.kill()
        assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == -1
        target = spawn(MC_LEGACY_RPC_PORT_BINDING="1")
        again, remote = target.engine(4 * MIB, host=name)
        assert again.endswith(name.rsplit(":", 1)[1])
        ours.ask("fill", addr=local, size=4 * MIB, value=value)
        result = retry(ours, op="write", peer=name, local=local, remote=remote, size=4 * MIB)
        assert result["rc"] == 0, result
        assert target.ask("values", addr=remote, size=4 * MIB)["values"] == [value]


def test_a_restarted_peer_never_gets_writes_meant_for_its_former_memory(spawn, path):
    """The new life lends other memory: an old address is refused, not written."""
    ours, target = spawn(), spawn()
    name, remote = target.engine(MIB)
    _, local = ours.engine(MIB, value=7)
    assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == 0
    target.kill()
    target = spawn(MC_LEGACY_RPC_PORT_BINDING="1")
    assert target.ask("init", host=name)["rc"] == 0
    result = retry(ours, seconds=1.0, op="write", peer=name, local=local, remote=remote, size=MIB)
    assert result["rc"] == -1


def test_a_thousand_restarts_leave_nothing_behind(spawn, path):
    restarts = RESTARTS.get(path, 1000)
    warm, last = max(restarts // 10, 10) - 1, restarts - 1   # some threads start when first needed
    ours, nursery = spawn(), spawn()
    _, local = ours.engine(65536, value=7)
    shm_before = len(os.listdir("/dev/shm"))
    usage, former = {}, set()
    for i in range(restarts):
        child = nursery.ask("spawn_child", size=65536, value=0)
        peer = f"127.0.0.1:{child['port']}"
        result = ours.ask("transfer", op="write", peer=peer, local=local, remote=child["addr"], size=65536)
        if result["rc"] != 0 and peer in former:   # a name that meant another life before: who uses it is told so, once
            assert "former life" in result["error"], (i, result)
            result = ours.ask("transfer", op="write", peer=peer, local=local, remote=child["addr"], size=65536)
        assert result["rc"] == 0, (i, result)
        former.add(peer)
        nursery.ask("reap", pid=child["pid"])
        if i in (warm, last):
            usage[i] = settled_usage(ours)
    early, late = usage[warm], usage[last]
    assert late["fds"] <= early["fds"] + 16, usage
    assert late["threads"] <= early["threads"] + 4, usage
    assert late["mappings"] <= early["mappings"] + 64, usage
    assert len(os.listdir("/dev/shm")) <= shm_before


def settled_usage(process, tries=30):
    """Dead peers are swept within a second or so: the smallest of some readings."""
    readings = [process.ask("usage")]
    for _ in range(tries):
        process.ask("pause", seconds=0.1)
        readings.append(process.ask("usage"))
    return min(readings, key=lambda r: r["fds"])
