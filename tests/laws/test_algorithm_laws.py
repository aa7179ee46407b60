"""What must hold for every algorithm, with and without weight standardization, in any codec."""

import pytest
import torch

from fedwsq.algorithms import ALGORITHMS
from fedwsq.core.tree import fingerprint
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.plan import METHODS, make_plan
from fedwsq.runs import load_snapshot, save_snapshot
from shared_pool import SharedPool

CPU = torch.device("cpu")
WORLD = {
    "data.name": "laws_world:tiny_digits",
    "data.clients": 4,
    "data.partition": "iid",
    "model.name": "laws_world:tiny_net",
    "clients_per_round": 3,
    "rounds": 10,
    "training.epochs": 1,
    "training.batches_per_epoch": 2,
    "training.precision": "float32",
}
CODECS = {
    "float32": {},
    "danuq1": {"codec": "danuq", "bits": 1},
    "danuq4": {"codec": "danuq", "bits": 4},
}
CASES = [
    (algorithm, standardize, codec)
    for algorithm in ALGORITHMS
    for standardize in (("scaled",) if algorithm == "fedwon" else ("none", "ws"))
    for codec in CODECS
]


def tiny_plan(algorithm, standardize="none", codec="float32", **more):
    axes = {"algorithm": algorithm, "model.standardize": standardize, "uplink": CODECS[codec]}
    return make_plan({}, {**WORLD, **axes, **more})


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    shared = SharedPool(tmp_path_factory.mktemp("pool"), workers=2)
    yield shared
    shared.close()


def outcome(server, rounds):
    records = [server.step() for _ in range(rounds)]
    assert [record.failures for record in records] == [{}] * rounds
    sent = [(record.uplink_bytes, record.downlink_bytes) for record in records]
    return fingerprint(server.params), sent, [record.test_accuracy for record in records]


@pytest.mark.parametrize(("algorithm", "standardize", "codec"), CASES)
def test_rounds_are_the_same_serial_on_a_pool_and_after_resume(
    algorithm, standardize, codec, pool, tmp_path
):
    plan = tiny_plan(algorithm, standardize, codec)
    simulation = simulate(plan)
    start = first_snapshot(simulation.charter)
    before = fingerprint(start.server["params"])

    save_snapshot(tmp_path / "start", start)
    loaded, _ = load_snapshot(tmp_path / "start")
    assert fingerprint(loaded.server["params"]) == before

    serial = simulation.server(simulation.serial(CPU, tmp_path / "serial"), start)
    first = outcome(serial, 1)
    assert first[0] != before, "the round did not change the model"
    save_snapshot(tmp_path / "checkpoints", serial.snapshot)
    second = outcome(serial, 1)
    for vector in serial.snapshot.server.values():
        assert all(torch.isfinite(x).all() for x in vector.values())

    pool.adopt(plan, tmp_path / "pool")
    side_by_side = simulation.server(pool, start)
    assert outcome(side_by_side, 1) == first
    assert outcome(side_by_side, 1) == second

    # Round 2 once more, from the checkpoint, over memory that has seen it already: nobody advances
    # twice.
    snapshot, warning = load_snapshot(tmp_path / "checkpoints")
    assert not warning
    again = simulation.server(simulation.serial(CPU, tmp_path / "serial"), snapshot)
    assert outcome(again, 1) == second


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "fedavg"])
def test_an_update_differs_from_fedavg(algorithm, tmp_path):
    axis = "scaled" if algorithm == "fedwon" else "none"
    exchange = {"algorithm.exchange": "wsp"} if algorithm == "fedwon" else {}
    results = []
    for name, more in (("fedavg", {}), (algorithm, exchange)):
        simulation = simulate(tiny_plan(name, axis, **more))
        server = simulation.server(simulation.serial(CPU, tmp_path / name))
        results.append(outcome(server, 2)[0])
    assert results[0] != results[1]


def test_what_a_method_sends_beyond_fedavg_is_counted(tmp_path):
    sent = {}
    for name in ("fedavg", "scaffold", "fedsmoo", "fedcm", "feddyn"):
        simulation = simulate(tiny_plan(name))
        record = simulation.server(simulation.serial(CPU, tmp_path / name)).step()
        sent[name] = (record.uplink_bytes, record.downlink_bytes)
    up, down = sent["fedavg"]
    weights = 4 * sum(simulation.charter.schema.sizes.values())
    assert sent["feddyn"] == (up, down)
    for name in ("scaffold", "fedsmoo"):
        assert sent[name][0] - up > 3 * weights
        assert sent[name][1] - down > 3 * weights
    assert sent["fedcm"][0] == up
    assert sent["fedcm"][1] - down > 3 * weights


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_by_its_name(method, tmp_path):
    simulation = simulate(make_plan({}, {"method": method, **WORLD}))
    server = simulation.server(simulation.serial(CPU, tmp_path))
    assert not server.step().failures
