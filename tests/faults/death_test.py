# SPDX-License-Identifier: Apache-2.0
"""The peer dies, stops or restarts in the middle of transfers."""
import signal

import pytest

MIB = 1 << 20
DEADLINE = 5.0   # MC_TRANSFER_TIMEOUT of the workers, its minimum
GRACE = 5.0      # fence, scheduling on a loaded machine


@pytest.mark.parametrize("op", ["write", "read"])
def test_killed_peer_is_an_error_that_names_it_and_others_go_on(spawn, path, op):
    ours, victim, other = spawn(), spawn(), spawn()
    name, remote = victim.engine(64 * MIB)
    other_name, other_remote = other.engine(MIB)
    _, local = ours.engine(64 * MIB, value=7)
    beside = ours.start("loop", op=op, peer=other_name, local=local, remote=other_remote, size=MIB, stop_on_error=True)
    ours.wait_event("running")
    doomed = ours.start("loop", op=op, peer=name, local=local, remote=remote, size=64 * MIB)
    ours.wait_event("running")
    victim.kill()
    result = doomed.get()
    assert result["rc"] == -1
    assert name in result["error"], result["error"]
    assert result["longest"] < DEADLINE + GRACE
    ours.ask("stop_loop")
    unaffected = beside.get()
    assert unaffected["rc"] == 0, unaffected


def test_errors_name_path_stage_and_errno(spawn, path):
    ours, victim = spawn(), spawn()
    name, remote = victim.engine(64 * MIB)
    _, local = ours.engine(64 * MIB)
    assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == 0
    victim.kill()
    error = ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["error"]
    assert name in error and "errno" in error, error


@pytest.mark.parametrize("op", ["write", "read"])
def test_stopped_peer_costs_one_deadline_and_works_again_after_it(spawn, path, op):
    if path == "shm":
        # Same-host copies are done by us, not by the stopped peer: they just go on.
        ours, sleeper = spawn(), spawn()
        name, remote = sleeper.engine(8 * MIB)
        _, local = ours.engine(8 * MIB, value=7)
        assert ours.ask("transfer", op=op, peer=name, local=local, remote=remote, size=8 * MIB)["rc"] == 0
        sleeper.signal(signal.SIGSTOP)
        result = ours.ask("transfer", op=op, peer=name, local=local, remote=remote, size=8 * MIB)
        assert result["rc"] == 0, result
        sleeper.signal(signal.SIGCONT)
        return
    ours, sleeper, other = spawn(), spawn(), spawn()
    name, remote = sleeper.engine(64 * MIB, value=1)
    other_name, other_remote = other.engine(MIB)
    _, local = ours.engine(64 * MIB, value=7)
    running = ours.start("loop", op=op, peer=name, local=local, remote=remote, size=64 * MIB)
    ours.wait_event("running")
    sleeper.signal(signal.SIGSTOP)
    for _ in range(3):
        assert ours.ask("transfer", op=op, peer=other_name, local=local, remote=other_remote, size=MIB)["rc"] == 0
    result = running.get()
    assert result["rc"] == -1 and name in result["error"]
    assert result["longest"] < DEADLINE + GRACE
    sleeper.signal(signal.SIGCONT)
    ours.ask("fill", addr=local, size=64 * MIB, value=9)
    assert retry(ours, op="write", peer=name, local=local, remote=remote, size=64 * MIB)["rc"] == 0
    # What the stopped peer still had in its sockets must not land on top of what came after it.
    assert sleeper.ask("watch", addr=remote, size=64 * MIB, seconds=0.5)["quiet"]
    assert sleeper.ask("values", addr=remote, size=64 * MIB)["values"] == [9]


def test_transfers_to_a_stopped_peer_end_together(spawn, path):
    if path == "shm":
        pytest.skip("same-host copies are done by us, not by the stopped peer")
    ours, sleeper = spawn(), spawn()
    name, remote = sleeper.engine(MIB)
    _, local = ours.engine(MIB, value=7)
    assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == 0
    sleeper.signal(signal.SIGSTOP)
    batches = [ours.ask("submit", op="write", peer=name, local=local, remote=remote, size=65536)["batch"] for _ in range(40)]
    waits = [ours.start("wait", batch=batch) for batch in batches]
    results = [wait.get() for wait in waits]
    assert max(result["seconds"] for result in results) < DEADLINE + GRACE
    assert results[-1]["rc"] == -1
    sleeper.signal(signal.SIGCONT)
    assert retry(ours, op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == 0


def test_stopped_peers_keep_nobody_from_reaching_another(spawn, path):
    if path == "shm":
        pytest.skip("same-host copies are done by us, not by the stopped peer")
    ours, other, *sleepers = (spawn() for _ in range(2 + 9))
    _, local = ours.engine(MIB, value=7)
    other_name, other_remote = other.engine(MIB)
    targets = [sleeper.engine(MIB) for sleeper in sleepers]
    for name, remote in [*targets, (other_name, other_remote)]:
        assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == 0
    for sleeper in sleepers:
        sleeper.signal(signal.SIGSTOP)
    doomed = [ours.start("loop", op="write", peer=name, local=local, remote=remote, size=MIB) for name, remote in targets]
    assert all(one.get()["longest"] < DEADLINE + GRACE for one in doomed)
    # They are asked for as long as they do not answer. The other one has to be asked for this memory, too.
    fresh = other.ask("buffer", size=MIB)["addr"]
    result = ours.ask("transfer", op="write", peer=other_name, local=local, remote=fresh, size=MIB)
    assert result["rc"] == 0, result


def retry(process, seconds=10.0, **transfer):
    """As a framework does: calls again until it works. A dead peer is remembered for a moment, so the first may fail."""
    return process.ask("persist", patience=seconds, **transfer)


def test_initiator_killed_in_the_middle_leaves_the_target_working(spawn, path):
    target, second = spawn(), spawn()
    name, remote = target.engine(64 * MIB)
    before = None
    for _ in range(12):
        first = spawn()
        _, local = first.engine(64 * MIB, value=3)
        first.start("loop", op="write", peer=name, local=local, remote=remote, size=64 * MIB)
        first.wait_event("running")
        first.kill()
        before = before or target.ask("usage")
    _, local = second.engine(64 * MIB, value=5)
    assert second.ask("transfer", op="write", peer=name, local=local, remote=remote, size=64 * MIB)["rc"] == 0
    assert target.ask("values", addr=remote, size=64 * MIB)["values"] == [5]
    assert target.ask("unregister", addr=remote)["rc"] == 0, "a dead peer's claim is broken"
    assert target.ask("usage")["threads"] <= before["threads"] + 4, "some start when first needed, none per dead peer"


def test_unregister_fences_a_busy_writer(spawn, path):
    target, writer = spawn(), spawn()
    name, remote = target.engine(32 * MIB)
    _, local = writer.engine(32 * MIB, value=4)
    running = writer.start("loop", op="write", peer=name, local=local, remote=remote, size=32 * MIB)
    writer.wait_event("running")
    assert target.ask("unregister", addr=remote)["rc"] == 0
    target.ask("fill", addr=remote, size=32 * MIB, value=0xEE)
    assert target.ask("watch", addr=remote, size=32 * MIB, seconds=0.5)["quiet"]
    assert target.ask("values", addr=remote, size=32 * MIB)["values"] == [0xEE]
    assert running.get()["rc"] == -1


def test_cancelled_buffers_may_be_reused_at_once(spawn, path):
    target, ours = spawn(), spawn()
    name, remote = target.engine(64 * MIB, value=1)
    _, local = ours.engine(64 * MIB, value=2)
    assert ours.ask("transfer", op="write", peer=name, local=local, remote=remote, size=MIB)["rc"] == 0
    for round_ in range(3 if path == "fabric" else 10):   # a fence costs it a new endpoint
        for op in ("read", "write"):
            target.ask("fill", addr=remote, size=64 * MIB, value=1)
            ours.ask("fill", addr=local, size=64 * MIB, value=2)
            batch = ours.ask("submit", op=op, peer=name, local=local, remote=remote, size=64 * MIB)["batch"]
            assert batch > 0
            assert ours.ask("cancel", batch=batch)["rc"] in (0, -1)
            ours.ask("wait", batch=batch)
            # Poison, and watch: neither side may see another byte of the cancelled transfer.
            ours.ask("fill", addr=local, size=64 * MIB, value=0xA0 + round_)
            target.ask("fill", addr=remote, size=64 * MIB, value=0xB0 + round_)
            watched = [p.start("watch", addr=a, size=64 * MIB, seconds=0.1) for p, a in ((ours, local), (target, remote))]
            assert all(w.get()["quiet"] for w in watched), (round_, op)
            assert ours.ask("values", addr=local, size=64 * MIB)["values"] == [0xA0 + round_]
            assert target.ask("values", addr=remote, size=64 * MIB)["values"] == [0xB0 + round_]
