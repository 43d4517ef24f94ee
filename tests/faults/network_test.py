# SPDX-License-Identifier: Apache-2.0
"""The network between two live peers fails."""
import os
import random
import socket
import threading

import pytest
from death_test import DEADLINE, GRACE, MIB, retry
from network import Cable, reset_connections

TCP = {"MC_TRANSPORTS": "tcp"}


@pytest.mark.parametrize("op", ["write", "read"])
def test_connection_resets_are_survived_with_right_bytes(spawn, op):
    ours, target = spawn(**TCP), spawn(**TCP)
    name, remote = target.engine(64 * MIB)
    _, local = ours.engine(64 * MIB)
    source, place = ((ours, local), (target, remote)) if op == "write" else ((target, remote), (ours, local))
    resets = 0
    for seed in range(8):
        digest = source[0].ask("randomize", addr=source[1], size=64 * MIB, seed=seed)["digest"]
        running = ours.start("transfer", op=op, peer=name, local=local, remote=remote, size=64 * MIB)
        resets += reset_connections((target if seed % 2 else ours).pid)
        result = running.get()
        if result["rc"] != 0:
            result = retry(ours, op=op, peer=name, local=local, remote=remote, size=64 * MIB)
        assert result["rc"] == 0, result
        assert place[0].ask("digest", addr=place[1], size=64 * MIB)["digest"] == digest
    assert resets > 0


def test_a_blackholed_route_costs_one_deadline_and_heals(spawn):
    with Cable() as cable:
        ours = spawn(prefix=cable.prefix(0), **TCP)
        target = spawn(prefix=cable.prefix(1), **TCP)
        near = spawn(prefix=cable.prefix(0), **TCP)
        name, remote = target.engine(64 * MIB, host=cable.hosts[1])
        near_name, near_remote = near.engine(MIB, host=cable.hosts[0])
        _, local = ours.engine(64 * MIB, host=cable.hosts[0], value=7)
        running = ours.start("loop", op="write", peer=name, local=local, remote=remote, size=64 * MIB)
        ours.wait_event("running")
        cable.cut()
        assert ours.ask("transfer", op="write", peer=near_name, local=local, remote=near_remote, size=MIB)["rc"] == 0
        result = running.get()
        assert result["rc"] == -1 and name in result["error"], result
        assert result["longest"] < DEADLINE + GRACE
        assert "in doubt" in result["error"], "nobody could ask the peer"
        # A peer that answered nothing is not waited for again and again.
        again = ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)
        assert again["rc"] == -1 and again["seconds"] < DEADLINE + GRACE
        cable.mend()
        ours.ask("fill", addr=local, size=64 * MIB, value=9)
        assert retry(ours, op="write", peer=name, local=local, remote=remote, size=64 * MIB)["rc"] == 0
        assert target.ask("watch", addr=remote, size=64 * MIB, seconds=0.5)["quiet"]
        assert target.ask("values", addr=remote, size=64 * MIB)["values"] == [9]


def test_probe_of_a_dead_peer_ends_within_seconds(spawn):
    ours, target = spawn(), spawn()
    ours.engine(4096)
    name, _ = target.engine(4096)
    assert ours.ask("probe", peer=name)["rc"] == 0
    target.kill()
    result = ours.ask("probe", peer=name)
    assert result["rc"] != 0 and result["seconds"] < DEADLINE + GRACE


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + os.urandom(190),
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "random": random.Random(5).randbytes(1 << 16),
    "huge length": (1 << 62).to_bytes(8, "little") + b"\x01{}",
    "nothing": b"",
}


def listening_ports(pid):
    ports = set()
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            next(lines)
            ports |= {int(f[1].split(":")[1], 16) for f in map(str.split, lines) if f[3] == "0A" and f[9] in inodes}
    return sorted(ports)


def test_garbage_on_every_port_delays_nobody(spawn):
    ours, target = spawn(**TCP), spawn(**TCP)
    name, remote = target.engine(MIB)
    _, local = ours.engine(MIB, value=7)
    assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == 0
    ports = listening_ports(target.pid)
    assert len(ports) >= 2, "control and data"
    before = target.ask("usage")
    running = ours.start("loop", op="write", peer=name, local=local, remote=remote, size=65536, limit=3000)
    silent = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(50)]

    def throw(port):
        for text in list(GARBAGE.values()) * 5:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                try:
                    connection.sendall(text)
                except OSError:
                    pass  # it may hang up on us

    throwers = [threading.Thread(target=throw, args=(port,)) for port in ports]
    [t.start() for t in throwers]
    [t.join() for t in throwers]
    newcomer = spawn(**TCP)
    _, fresh = newcomer.engine(MIB, value=8)
    result = newcomer.ask("transfer", op="write", peer=name, local=fresh, remote=remote, size=MIB)
    assert result["rc"] == 0, result
    assert running.get()["rc"] == 0
    [connection.close() for connection in silent]
    newcomer.kill()
    for _ in range(50):
        after = target.ask("usage")
        if after["fds"] <= before["fds"] + 8:
            break
        target.ask("pause", seconds=0.1)
    assert after["fds"] <= before["fds"] + 8, (before, after)
    assert after["threads"] <= before["threads"] + 4
