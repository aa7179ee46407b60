"""The seam holds: real processes with their own examples alone give the weights of one process."""

import os
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sockets
import torch
from sockets import Sockets

from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import fingerprint
from fedwsq.data.digits import digits
from fedwsq.federation.charter import Charter, difference
from fedwsq.federation.evaluator import OwnEvaluator, Scorer
from fedwsq.federation.hello import Introduction
from fedwsq.federation.owners import Census, ExampleFormat, ModelSpec, TestData
from fedwsq.federation.server import Server, first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.plan import dump_plan
from fedwsq.runs import Machine, Opened, Run
from harness import PATIENCE_SECONDS, greet, tiny

CPU = torch.device("cpu")
DIGITS = ExampleFormat(classes=10, shape=(1, 8, 8))
MEMORY = {
    "algorithm": "scaffold",
    "data.clients": 2,
    "data.partition": "iid",
    "clients_per_round": 2,
    "training.precision": "float32",
    "uplink.codec": "danuq",
    "uplink.bits": 1,
    "uplink.error_feedback": True,
    "downlink": {"codec": "danuq", "bits": 2, "mode": "chain"},
}
PLAN = tiny(**MEMORY)
OWN = tiny(**MEMORY | {"data.partition": "own"})


@contextmanager
def processes(folder, plans):
    """A client process for each plan, each with its own shard on disk, and the way to them."""
    clients = simulate(PLAN).clients
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        port = server.getsockname()[1]
        try:
            for client, plan in enumerate(plans):
                home = folder / f"machine-{client}"
                home.mkdir()
                shard = clients.shard(client)
                np.savez(home / "mine.npz", x=shard.x.numpy(), y=shard.y.numpy())
                (home / "plan.toml").write_text(dump_plan(plan))
                words = [sys.executable, sockets.__file__, str(home), str(client), str(port)]
                started.append(subprocess.Popen(words, env=environment, cwd=home))
            with closing(Sockets(server, len(plans))) as transport:
                yield transport
        finally:
            for process in started:
                process.kill()
                process.wait()


def charter_of(plan):
    return Charter(plan, ModelSpec(plan, DIGITS))


class Elsewhere:
    """A run's backend whose server has a model and test data, and no training data at all."""

    data_digest = ""
    evaluated_on = "test"
    census = Census()

    def __init__(self, plan, machine, transport):
        self.charter = charter_of(plan)
        self.transport = transport

    def try_out(self):
        """The clients' data is elsewhere."""

    def open(self, store):
        test = digits().test
        data = TestData("test", test, torch.arange(len(test)), DIGITS)
        return Opened(self.transport, OwnEvaluator(Scorer(self.charter, CPU), data))


def test_two_processes_give_the_weights_of_one(tmp_path):
    simulation = simulate(PLAN)
    alone = simulation.server(simulation.serial(CPU, tmp_path / "alone"))
    expected = [alone.step() for _ in range(PLAN.rounds)]

    with processes(tmp_path, [OWN, OWN]) as transport:

        def backend(plan: object, machine: Machine) -> Elsewhere:
            return Elsewhere(plan, machine, transport)

        with Run.create(OWN, tmp_path / "run", device="cpu", backend=backend) as run:
            summary = run.go()

    assert [row.failures for row in run.records] == [{}] * PLAN.rounds
    assert summary.weights == fingerprint(alone.params)
    assert [row.test_accuracy for row in run.records] == [row.test_accuracy for row in expected]
    assert [row.uplink_bytes for row in run.records] == [row.uplink_bytes for row in expected]
    # Nobody told this server how much its clients hold.
    assert [row.simulated_seconds for row in run.records] == [None] * PLAN.rounds


def test_a_hello_introduces_clients_and_names_the_first_setting_that_differs(tmp_path):
    other = replace(OWN, training=replace(OWN.training, lr=0.05))
    charter = charter_of(OWN)
    with processes(tmp_path, [OWN, other]) as transport:
        found = greet(charter, transport, [0, 1])
        server = Server(charter, transport, None, Census(), first_snapshot(charter))
        row = server.step()

    sizes = simulate(PLAN).clients.size(0)
    assert isinstance(found[0], Introduction)
    assert (found[0].examples, tuple(found[0].labels)) == sizes
    assert (found[0].precision, found[0].device) == ("float32", "cpu")
    assert "training.lr is 0.1 at the other end and 0.05 at this one" in str(found[1])
    # Without a hello it is refused too, and the round goes on.
    assert row.replied == 1
    assert "the other end works by other settings" in row.failures["1"]
    assert row.test_accuracy is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed is 0 at the other end and 1 at this one"),
        ({"algorithm": "fedavg"}, 'algorithm.name is "scaffold"'),
        ({"training.epochs": 2}, "training.epochs is 1 at the other end and 2 at this one"),
        ({"uplink.bits": 2}, "uplink.bits.bits is 1"),
        ({"downlink.bits": 4}, "downlink.bits.bits is 2"),
        ({"model.standardize": "none"}, 'model.standardize.name is "ws"'),
        ({"data.clients": 3}, "data.clients is 2 at the other end and 3 at this one"),
        ({"training.precision": "bfloat16"}, None),
        ({"rounds": 7}, None),
        ({"eval_every": 2}, None),
    ],
)
def test_what_both_ends_must_share(changes, named):
    """Whoever differs is refused by both, unless it makes no difference to the other end."""
    mine = charter_of(tiny(**MEMORY | {"data.partition": "own"} | changes))
    theirs = charter_of(OWN)
    said = difference(mine.settings, theirs.settings)
    assert (mine.digest == theirs.digest) == (named is None)
    assert (said is None) if named is None else (named in said)


def test_a_plan_whose_clients_bring_their_data_cannot_be_simulated(tmp_path):
    with pytest.raises(ConfigError, match="clients bring their own data"):
        simulate(OWN)
    assert list(Path(tmp_path).iterdir()) == []
