# SPDX-License-Identifier: Apache-2.0
"""mooncake.kvplan: plans between unequal sides, carried out between processes."""

import asyncio
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from helpers import HERE, PATIENCE_S
from mooncake import kvplan
from mooncake.engine import TransferEngine

LAYERS, HEADS, CHANNELS, TOKENS = 4, 6, 16, 50
NAMES = [f"model.layers.{i}" for i in range(LAYERS)]


def cell(layer: int, part: int, head: int, token: int) -> np.ndarray:
    """What lies there, whoever holds it."""
    return (np.arange(CHANNELS, dtype=np.int32) + ((layer * 2 + part) * HEADS + head) * 1000 * CHANNELS + token * CHANNELS).astype(np.int32)


class Side:
    """Ranks of a side in this process, each with an engine: layers, parts, blocks, tokens, heads, channels."""

    def __init__(self, tp: int, block_tokens: int, spare_blocks: int = 3) -> None:
        self.block_tokens = block_tokens
        blocks = -(-TOKENS // block_tokens)
        self.tables = [np.random.default_rng(tp + i).permutation(blocks + spare_blocks)[:blocks].tolist() for i in range(tp)]
        self.engines, self.memory, self.ranks, self.heads = [], [], [], []
        for i in range(tp):
            first, count = kvplan.heads_of_rank(HEADS, tp, i)
            memory = np.full((LAYERS, 2, blocks + spare_blocks, block_tokens, count, CHANNELS), -1, dtype=np.int32)
            engine = TransferEngine()
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
            assert engine.register_memory(memory.ctypes.data, memory.nbytes) == 0
            regions = kvplan.regions_of_tensor(memory, ("layer", "part", "block", "token", "head", "channel"), layers=NAMES, parts=("k", "v"),
                                               first_head=first, total_heads=HEADS)
            self.engines.append(engine)
            self.memory.append(memory)
            self.heads.append(range(first, first + count))
            self.ranks.append(kvplan.Rank(f"127.0.0.1:{engine.get_rpc_port()}", regions))

    def cells(self):
        for rank, memory in enumerate(self.memory):
            for token in range(TOKENS):
                block, slot = self.tables[rank][token // self.block_tokens], token % self.block_tokens
                for at, head in enumerate(self.heads[rank]):
                    for layer in range(LAYERS):
                        for part in range(2):
                            yield memory[layer, part, block, slot, at], cell(layer, part, head, token)

    def fill(self) -> None:
        for there, value in self.cells():
            there[:] = value

    def wrong(self) -> int:
        return sum(not np.array_equal(there, value) for there, value in self.cells())

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


@pytest.fixture
def sides():
    source, target = Side(tp=2, block_tokens=16), Side(tp=3, block_tokens=8)
    source.fill()
    yield source, target
    source.close()
    target.close()


def make_plan(source, target, **options):
    return kvplan.make_plan(source.ranks, target.ranks, tokens=TOKENS, source_blocks=[[table] for table in source.tables],
                            target_blocks=[[table] for table in target.tables], **options)


def test_sources_write_and_every_byte_arrives(sides):
    source, target = sides
    for i, engine in enumerate(source.engines):
        plan = make_plan(source, target, only_source=i)
        with kvplan.Flow(engine, plan, source=i, notify=("request 7", f"from {i}")) as flow:
            assert flow.layers == NAMES
            assert flow.submit().wait(PATIENCE_S) == sum(peer.bytes for peer in flow.peers) == sum(pair.bytes for pair in plan.pairs)
    assert target.wrong() == 0
    whole = make_plan(source, target)
    assert whole.sources_of == [1, 2, 1] and whole.targets_of == [2, 2]
    for engine, number in zip(target.engines, whole.sources_of):
        end = time.monotonic() + PATIENCE_S
        heard = []
        while len(heard) < number and time.monotonic() < end:
            heard += engine.get_notifies()
        assert sorted((one.name, one.msg) for one in heard) == [("request 7", one.msg) for one in sorted(heard, key=lambda one: one.msg)]
        assert len(heard) == number


def test_targets_read_layer_by_layer_and_are_awaited(sides):
    source, target = sides

    async def main():
        for i, engine in enumerate(target.engines):
            flow = kvplan.Flow(engine, make_plan(source, target, only_targets=[i]), target=i)
            moved = await asyncio.gather(*(flow.submit(layer) for layer in reversed(flow.layers)))
            assert sum(moved) == sum(peer.bytes for peer in flow.peers)

    asyncio.run(main())
    assert target.wrong() == 0


def test_a_cancelled_task_leaves_nothing_moving(sides):
    source, target = sides

    async def main():
        flow = kvplan.Flow(source.engines[0], make_plan(source, target, only_source=0), source=0)
        step = flow.submit()
        task = asyncio.ensure_future(step._await())
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        assert step.done()

    asyncio.run(main())


def test_a_step_may_be_awaited_by_several_tasks_and_threads(sides):
    source, target = sides

    async def main():
        flow = kvplan.Flow(source.engines[0], make_plan(source, target, only_source=0), source=0)
        step = flow.submit()
        waiting = [asyncio.ensure_future(step._await()) for _ in range(3)]
        moved = await asyncio.wait_for(asyncio.gather(*waiting, asyncio.to_thread(step.wait, PATIENCE_S)), PATIENCE_S)
        assert set(moved) == {sum(peer.bytes for peer in flow.peers)}
        assert await step == moved[0]

    asyncio.run(main())


def test_pieces_are_what_a_list_of_transfers_needs(sides):
    source, target = sides
    plan = make_plan(source, target)
    for number, pair in enumerate(plan.pairs):
        total = 0
        for layer in NAMES:
            there, here, lengths = plan.pieces(number, layer)
            total += sum(lengths)
            assert source.engines[pair.source].batch_transfer_sync_write(target.ranks[pair.target].segment, there, here, lengths) == 0
        assert total == pair.bytes
        assert sum(plan.pieces(number)[2]) == pair.bytes
    assert target.wrong() == 0
    with pytest.raises(IndexError):
        plan.pieces(len(plan.pairs))


def test_ranks_travel_as_plain_values(sides):
    source, _ = sides
    values = json.loads(json.dumps(kvplan.describe(source.ranks[1])))
    again = kvplan.rank_from({**values, "said by a later version": 1})
    assert kvplan.describe(again) == values


def test_what_does_not_fit_together_is_refused_with_the_place(sides):
    source, target = sides
    with pytest.raises(ValueError, match="head"):
        kvplan.make_plan(source.ranks[:1], target.ranks, tokens=TOKENS, source_blocks=[[source.tables[0]]],
                         target_blocks=[[table] for table in target.tables])
    with pytest.raises(ValueError):
        make_plan(source, target, only_source=0, only_targets=[0])
    with pytest.raises(ValueError, match="axis"):
        kvplan.regions_of_tensor(source.memory[0], ("layer", "part", "block", "token", "head", "colour"), layers=NAMES)
    with pytest.raises(ValueError, match="axes"):
        kvplan.regions_of_tensor(source.memory[0], ("block",), layers=NAMES)
    with pytest.raises(ValueError, match="backwards"):
        kvplan.regions_of_tensor(source.memory[0][::-1], ("layer", "part", "block", "token", "head", "channel"), layers=NAMES)
    plan = make_plan(source, target)
    with pytest.raises(TypeError):
        kvplan.Flow(source.engines[0], plan)
    with pytest.raises(TypeError):
        kvplan.Flow(source.engines[0], plan, source=0, target=0)
    with pytest.raises(RuntimeError, match="no source of number 9"):
        kvplan.Flow(source.engines[0], plan, source=9)
    flow = kvplan.Flow(source.engines[0], plan, source=0)
    with pytest.raises(RuntimeError, match="no layer"):
        flow.submit("model.layers.99")
    flow.submit(NAMES[0]).wait(PATIENCE_S)
    with pytest.raises(RuntimeError, match="started before"):
        flow.submit(NAMES[0])
    flow.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        flow.submit()


PEER = """
import json, sys
import numpy as np
sys.path.insert(0, {here!r})
import kvplan_test as t
side = t.Side(tp=1, block_tokens=4)
print(json.dumps(t.kvplan.describe(side.ranks[0])), json.dumps(side.tables), sep="\\n", flush=True)
for line in sys.stdin:
    print(side.wrong(), flush=True)
"""


def test_another_process_is_filled_and_a_killed_one_is_an_error(sides):
    source, _ = sides
    peer = subprocess.Popen([sys.executable, "-c", PEER.format(here=str(HERE))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    try:
        target = [kvplan.rank_from(json.loads(peer.stdout.readline()))]
        tables = [[table] for table in json.loads(peer.stdout.readline())]

        def flow_of(i):
            plan = kvplan.make_plan(source.ranks, target, tokens=TOKENS, source_blocks=[[table] for table in source.tables], target_blocks=tables,
                                    only_source=i)
            return kvplan.Flow(source.engines[i], plan, source=i)

        for i in range(2):
            flow_of(i).submit().wait(PATIENCE_S)
        peer.stdin.write("\n")
        assert peer.stdout.readline() == "0\n"
        late = flow_of(0)
        peer.kill()
        peer.wait()
        with pytest.raises(RuntimeError):
            late.submit().wait(PATIENCE_S)
        with pytest.raises(RuntimeError):
            kvplan.Flow(source.engines[0], late_plan(source, target, tables), source=0, timeout=1.0)
    finally:
        peer.kill()
        peer.wait()
        peer.stdin.close()
        peer.stdout.close()


def late_plan(source, target, tables):
    return kvplan.make_plan(source.ranks, target, tokens=TOKENS, source_blocks=[[table] for table in source.tables], target_blocks=tables, only_source=0)


def test_a_forked_child_does_not_wait_for_its_parents_steps():
    """Its parent's threads, which end them, do not exist in it. The peer is stopped, so that the step is under way when the child is made."""
    code = f"""
import asyncio, json, os, signal, subprocess, sys
sys.path.insert(0, {str(HERE)!r})
import kvplan_test as t
peer = subprocess.Popen([sys.executable, "-c", t.PEER.format(here={str(HERE)!r})], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
target = [t.kvplan.rank_from(json.loads(peer.stdout.readline()))]
tables = [[table] for table in json.loads(peer.stdout.readline())]
source = t.Side(tp=1, block_tokens=4)
plan = t.kvplan.make_plan(source.ranks, target, tokens=t.TOKENS, source_blocks=[[table] for table in source.tables], target_blocks=tables)
flow = t.kvplan.Flow(source.engines[0], plan, source=0)
peer.send_signal(signal.SIGSTOP)
step = flow.submit()
child = os.fork()
if child == 0:
    async def wait():
        return await step
    for ask in (step.wait, lambda: asyncio.run(wait())):
        try:
            ask()
            os._exit(1)
        except RuntimeError:
            pass
    os._exit(0 if step.done() else 2)
print(os.waitpid(child, 0)[1])
peer.kill()
flow.close()
peer.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, "MC_TRANSPORTS": "tcp"})
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_flows_that_nobody_keeps_end_with_the_interpreter():
    code = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import kvplan_test as t
source, target = t.Side(tp=1, block_tokens=4), t.Side(tp=2, block_tokens=4)
flow = t.kvplan.Flow(source.engines[0], t.make_plan(source, target, only_source=0), source=0)
step = flow.submit()
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
