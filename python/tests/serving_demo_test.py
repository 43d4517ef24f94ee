# SPDX-License-Identifier: Apache-2.0
"""The demonstration of serving: a tiny model behind prefill and decode processes of different tensor parallelism, the store and the conductor."""

import threading
import time

import numpy as np
import pytest

from mooncake.demo import Pool
from mooncake.serving_demo.cluster import Chats, Cluster
from mooncake.serving_demo.model import SHAPE, Cache, Model

TOKENS = 8


def run(model: Model, ranks, prompt, chunk=1000):
    """The logits after a prompt that is computed in chunks."""
    table = range(16)
    for at in range(0, len(prompt), chunk):
        *_, logits = model.forward(prompt[at:at + chunk], at, ranks, table)
    return logits


def caches(model: Model, tp: int, block_tokens: int = 16):
    return [Cache(SHAPE, model.names, 16, block_tokens, tp_size=tp, tp_rank=rank) for rank in range(tp)]


def test_the_model_computes_the_same_however_it_is_shared_out():
    model, prompt = Model(), list(range(40, 110))
    want = run(model, caches(model, 1), prompt)
    for tp in (2, 4, 8):
        assert np.allclose(run(model, caches(model, tp, 32), prompt, chunk=13), want, atol=1e-5)


def test_the_next_token_depends_on_every_part_of_the_cache():
    """Otherwise the demonstration would not notice what is missing."""
    model, prompt = Model(), list(range(40, 110))
    ranks = caches(model, 2)
    want = run(model, ranks, prompt)
    random = np.random.default_rng(3)
    for rank in ranks:
        for memory in rank.layers.values():
            part, token = random.integers(2), random.integers(len(prompt) - 1)
            saved = memory[part, token // 16, token % 16].copy()
            memory[part, token // 16, token % 16] += 1
            *_, changed = model.forward(prompt[-1:], len(prompt) - 1, ranks, range(16))
            assert not np.allclose(changed, want, atol=1e-5)
            memory[part, token // 16, token % 16] = saved
    *_, again = model.forward(prompt[-1:], len(prompt) - 1, ranks, range(16))
    assert np.allclose(again, want, atol=1e-5)


@pytest.fixture(scope="module")
def pool():
    pool = Pool(256 << 20, 0)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("MC_LOG_LEVEL", "ERROR")


def test_answers_are_those_of_a_single_process_and_outlive_a_prefill_process(pool):
    cluster = Cluster(pool.master, layer_seconds=0.002)
    try:
        prompts = Chats(2).prompts(8)
        for number, prompt in enumerate(prompts):
            ask = cluster.ask_streaming if number % 2 else cluster.ask
            assert ask(prompt, TOKENS) == cluster.model.generate(prompt, TOKENS)
        before = [one.state() for one in (*cluster.prefill, *cluster.decode)]
        assert sum(state["stored_tokens"] for state in before) > 0, "nothing came from the store"
        assert sum(state["prefilled_tokens"] for state in before) < sum(len(prompt) for prompt in prompts)
        # One prompt has some chunks, each of which is read layer by layer.
        assert sum(state["load_steps"] for state in before) > len(prompts) * SHAPE.layers
        prompt = prompts[-1] + [1, 2, 3] * 200
        answers = []
        asking = threading.Thread(target=lambda: answers.append(cluster.ask(prompt, TOKENS)))
        asking.start()
        cluster.kill_busy_prefill()
        asking.join()
        assert answers == [cluster.model.generate(prompt, TOKENS)]
        assert cluster.ask(prompts[0], TOKENS) == cluster.model.generate(prompts[0], TOKENS)
        for one in (*cluster.prefill, *cluster.decode):
            assert (one.state()["running"], one.state()["loading"]) == (0, 0)
    finally:
        cluster.close()


def test_whole_requests_are_handed_over_by_those_that_pull():
    cluster = Cluster(dialect="vllm-pull")
    try:
        for prompt in Chats(3).prompts(4):
            assert cluster.ask(prompt, TOKENS) == cluster.model.generate(prompt, TOKENS)
        end = time.monotonic() + 60
        while any(one.state()["free_blocks"] != 512 for one in (*cluster.prefill, *cluster.decode)):
            assert time.monotonic() < end, "blocks are still held"
        assert all(one.state()["errors"] == [] for one in (*cluster.prefill, *cluster.decode))
    finally:
        cluster.close()
