"""Methods whose clients remember: kills, lost replies and old checkpoints leave no trace."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from test_algorithm_laws import tiny_plan

from fedwsq.core.tree import fingerprint
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.plan import dump_plan
from fedwsq.runs import Run, load_snapshot, run, save_snapshot
from fedwsq.runs.checkpoint import LAST
from fedwsq.wire import Kind, kind_of
from harness import rows

CPU = torch.device("cpu")
ROUNDS = 6
FEEDBACK = {
    "uplink": {
        "codec": "danuq",
        "bits": 1,
        "select": "weights",
        "rest": "danuq8",
        "error_feedback": True,
    }
}
CHAIN = {
    "downlink": {
        "codec": "danuq",
        "bits": 2,
        "mode": "chain",
        "select": "weights",
        "rest": "danuq8",
    }
}
REMEMBERING = {
    "feddyn": ("feddyn", {}),
    "fedsmoo": ("fedsmoo", {}),
    "scaffold": ("scaffold", {}),
    "feedback": ("fedavg", FEEDBACK),
    "chain": ("fedavg", CHAIN),
    "all": ("scaffold", FEEDBACK | CHAIN),
}
every_memory = pytest.mark.parametrize(
    ("algorithm", "settings"), REMEMBERING.values(), ids=list(REMEMBERING)
)


class Crash(Exception):
    """The process is gone."""


class Troubled:
    """A real serial transport with trouble on the line."""

    def __init__(self, inner, crash_in=0, lose_in=0):
        self.inner = inner
        self.crash_in = crash_in
        self.lose_in = lose_in

    def dispatch(self, body, orders, deadline=None):
        number = orders[0].key.round
        training = kind_of(orders[0].head) is Kind.ORDER
        for done, answer in enumerate(self.inner.dispatch(body, orders, deadline)):
            if training and number == self.crash_in and done == 3:
                raise Crash
            lost = training and number == self.lose_in and done == 1
            if not lost:
                yield answer

    def close(self):
        self.inner.close()


def serve(simulation, folder, snapshot, **trouble):
    transport = Troubled(simulation.serial(CPU, folder / "clients"), **trouble)
    return simulation.server(transport, snapshot)


def advance(server, folder, until):
    """Run rounds, with a checkpoint after each."""
    while server.snapshot.round < until:
        server.step()
        save_snapshot(folder / "checkpoints", server.snapshot)


@every_memory
def test_disturbed_and_undisturbed_runs_end_alike(algorithm, settings, tmp_path):
    cohort = {"data.clients": 6, "clients_per_round": 5}
    simulation = simulate(tiny_plan(algorithm, **cohort, **settings))
    start = first_snapshot(simulation.charter)
    (tmp_path / "calm").mkdir()
    calm = serve(simulation, tmp_path / "calm", start)
    advance(calm, tmp_path / "calm", ROUNDS)

    folder = tmp_path / "stormy"
    folder.mkdir()
    server = serve(simulation, folder, start, crash_in=3, lose_in=4)
    with pytest.raises(Crash):  # after 3 of 5 clients replied
        advance(server, folder, ROUNDS)
    server = serve(simulation, folder, load_snapshot(folder / "checkpoints")[0], lose_in=4)
    advance(server, folder, 4)  # round 4 loses a reply, and is over
    assert server.snapshot.accepted.tolist() != calm.snapshot.accepted.tolist()

    # Back to round 3: the round of the lost reply runs again.
    damaged = folder / "checkpoints" / LAST
    damaged.write_bytes(damaged.read_bytes()[:-40])
    snapshot, warning = load_snapshot(folder / "checkpoints")
    assert snapshot.round == 3
    assert "damaged" in warning
    advance(serve(simulation, folder, snapshot), folder, ROUNDS)

    final, _ = load_snapshot(folder / "checkpoints")
    for vector, params in calm.snapshot.server.items():
        assert fingerprint(final.server[vector]) == fingerprint(params)


@pytest.mark.slow
@every_memory
def test_a_real_kill_leaves_no_trace(algorithm, settings, tmp_path):
    """Three clients a round take two steps each, of one pass or two: in the 18th, others of that
    round have replied.
    """
    mortal = {"rounds": ROUNDS, "model.name": "laws_world:mortal_net"}
    plan = tiny_plan(algorithm, **mortal, **settings)
    (tmp_path / "plan.toml").write_text(dump_plan(plan))
    words = ["run", "plan.toml", "--trust", "--out", "killed", "--workers", "1"]
    command = [sys.executable, "-m", "fedwsq.cli", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TEST_KILLED_IN": "18"}
    killed = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    assert killed.returncode == -signal.SIGKILL
    assert len(rows(tmp_path / "killed")) == (1 if algorithm == "fedsmoo" else 2)
    with Run.resume(tmp_path / "killed", workers=1) as resumed:
        assert resumed.go().weights == run(plan, out=tmp_path / "calm", workers=1).weights


@pytest.mark.parametrize("settings", [{}, FEEDBACK], ids=["plain", "feedback"])
@pytest.mark.parametrize(
    ("algorithm", "ours", "theirs"),
    [("scaffold", "control", "control"), ("feddyn", "h", "g"), ("fedsmoo", "h", "h")],
)
def test_what_both_ends_keep_is_the_same_sum(algorithm, ours, theirs, settings, tmp_path):
    """The server's is the mean of all clients', though one bit a weight goes up and a reply is
    lost.
    """
    simulation = simulate(tiny_plan(algorithm, codec="danuq1", aggregation="uniform", **settings))
    start = first_snapshot(simulation.charter)
    server = serve(simulation, tmp_path, start, lose_in=2)
    assert [server.step().failed for _ in range(4)] == [0, 1, 0, 0]

    store = simulation.site(CPU, tmp_path / "clients").store
    memories = [
        store.load(client, accepted).algorithm[theirs]
        for client, accepted in enumerate(server.snapshot.accepted.tolist())
        if accepted
    ]
    for name, kept in server.snapshot.server[ours].items():
        mean = sum(memory[name] for memory in memories) / simulation.plan.data.clients
        torch.testing.assert_close(kept, mean, rtol=1e-5, atol=1e-6 * float(mean.abs().max()))
        assert mean.any()
