"""Updates on disk until one is made of them: the same as in memory, in bounded memory."""

import tracemalloc

import numpy as np
import pytest
import torch

from fedwsq.algorithms import ALGORITHMS
from fedwsq.codecs import CODECS, Danuq, Fixed
from fedwsq.core.seeds import numpy_rng
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import Key
from fedwsq.federation import stack as module
from fedwsq.federation.simulation import simulate
from fedwsq.federation.stack import Stack
from fedwsq.plan.combine import COMBINES, Median, TrimmedMean
from fedwsq.wire import Line, Link, Schema
from harness import tiny

CPU = torch.device("cpu")
SCHEMA = Schema({"conv": (3, 4, 5), "bias": (7,), "nothing": (0,), "deep": (6, 2, 3)})
ROBUST = [name for name in COMBINES if name != "mean"]


def updates(line, clients=7, vectors=("delta",)):
    """What clients sent, and what it stands for: [clients, elements] of each vector."""
    shared = {
        vector: {name: torch.ones_like(x) for name, x in states.items()}
        for vector, states in line.init(vectors).items()
    }
    sent = []
    rows = {vector: [] for vector in vectors}
    for client in range(clients):
        rng = torch.Generator().manual_seed(client)
        key = Key(5, 3, client)
        made = {
            vector: {n: torch.randn(s, generator=rng) for n, s in SCHEMA.shapes.items()}
            for vector in vectors
        }
        packets = line.send(made, shared, key, (4.0,)).packets
        sent.append((packets, key))
        for vector, tensors in line.receive(packets, shared, key).items():
            flat = [tensors[name].flatten() for name in SCHEMA.names]
            rows[vector].append(torch.cat(flat).numpy())
    return sent, shared, {vector: np.stack(each) for vector, each in rows.items()}


def stacked(line, combine, sent, shared, folder, vectors=("delta",)):
    out = {
        vector: {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}
        for vector in vectors
    }
    stack = Stack(line, out, combine, folder)
    for packets, key in sent:
        stack.add(packets, shared, key, 1.0)
    assert list(folder.iterdir()) == []  # nameless
    stack.settle()
    return {
        vector: torch.cat([out[vector][name].flatten() for name in SCHEMA.names]).numpy()
        for vector in vectors
    }


@pytest.mark.parametrize("block_bytes", [1, 1000, 10**6])
@pytest.mark.parametrize("name", ROBUST)
def test_it_is_the_combination_of_all_updates(name, block_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    line = Line(Link(Danuq(), Fixed(4)), SCHEMA)
    vectors = ("delta", "control")
    sent, shared, rows = updates(line, vectors=vectors)
    combine = COMBINES[name]()
    found = stacked(line, combine, sent, shared, tmp_path, vectors)
    for vector in vectors:
        expected = combine.merge(rows[vector], combine.survey(rows[vector]))
        np.testing.assert_allclose(found[vector], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("codec", CODECS)
def test_it_goes_with_every_codec(codec, tmp_path):
    made = CODECS[codec]()
    link = Link(made, Fixed(4 if 4 in made.rates else made.rates.listed[0]), select="all")
    line = Line(link, SCHEMA)
    key = Key(5, 3, 1)
    x = {"delta": {n: torch.randn(s) for n, s in SCHEMA.shapes.items()}}
    sent = line.send(x, {}, key, (link.bits.bits,)).packets
    received = line.receive(sent, {}, key)["delta"]
    found = stacked(line, Median(), [(sent, key)] * 3, {}, tmp_path)["delta"]
    expected = torch.cat([received[name].flatten() for name in SCHEMA.names])
    assert found.tolist() == expected.tolist()


def test_buckets_are_averages_of_updates_drawn_at_random(tmp_path):
    line = Line(Link(), SCHEMA)
    sent, shared, rows = updates(line)
    order = numpy_rng(5, "buckets", 3).permutation(7)
    assert sorted(order.tolist()) == list(range(7))
    means = [rows["delta"][order[a : a + 2]].mean(0) for a in (0, 2, 4, 6)]
    expected = np.median(np.stack(means), axis=0)
    found = stacked(line, Median(bucket=2), sent, shared, tmp_path)["delta"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_update_that_is_cut_back_counts_for_less(tmp_path):
    line = Line(Link(), SCHEMA)
    sent, shared, rows = updates(line, clients=3)
    out = {"delta": {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}}
    stack = Stack(line, out, TrimmedMean(cut=0.4), tmp_path)
    factors = (1.0, 0.25, 1.0)
    for (packets, key), factor in zip(sent, factors, strict=True):
        stack.add(packets, shared, key, factor)
    stack.settle()
    expected = np.median(rows["delta"] * np.array(factors, np.float32)[:, None], axis=0)
    found = torch.cat([out["delta"][name].flatten() for name in SCHEMA.names]).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ROBUST)
def test_memory_does_not_grow_with_the_updates(name, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 2**18)
    schema = Schema({"w": (2**18,)})
    line = Line(Link(), schema)
    key = Key(0, 1, 0)
    sent = line.send({"delta": {"w": torch.randn(2**18)}}, {}, key, (32.0,)).packets
    out = {"delta": {"w": torch.zeros(2**18)}}
    stack = Stack(line, out, COMBINES[name](), tmp_path)
    tracemalloc.start()
    for _ in range(40):  # 40 MB in all
        stack.add(sent, {}, key, 1.0)
    stack.settle()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 2**20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_round_of_every_algorithm(algorithm):
    """Its server takes what comes out, and the model moves."""
    settings = {"algorithm": algorithm, "combine": "median", "aggregation": "uniform"}
    if algorithm == "fedwon":
        settings["model.standardize"] = "scaled"
    small = {"data.clients": 3, "clients_per_round": 3, "eval_every": 9, "rounds": 9}
    simulation = simulate(
        tiny(**settings, **small, **{"training.batches_per_epoch": 1, "training.epochs": 1})
    )
    server = simulation.server(simulation.serial(CPU))
    before = fingerprint(server.params)
    row = server.step()
    assert (row.replied, row.failures) == (3, {})
    assert fingerprint(server.params) != before
