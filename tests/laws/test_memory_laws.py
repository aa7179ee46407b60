"""Methods whose clients remember: kills, lost replies and fallen-back checkpoints must not show in the weights."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from test_algorithm_laws import tiny_plan

from fedwsq.core.tree import fingerprint
from fedwsq.federation.server import Federation, first_snapshot
from fedwsq.federation.site import Site
from fedwsq.federation.workload import build_workload
from fedwsq.plan.build import dump_plan
from fedwsq.runs.checkpoint import LAST, load_snapshot, save_snapshot
from fedwsq.runs.run import Run, run
from fedwsq.transports.pool import Serial
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
    """A real serial backend with trouble on the line."""

    def __init__(self, inner, crash_in=0, lose_in=0):
        self.inner, self.crash_in, self.lose_in = inner, crash_in, lose_in

    def dispatch(self, body, orders):
        number = orders[0].key.round
        for done, answer in enumerate(self.inner.dispatch(body, orders)):
            if number == self.crash_in and done == 3:
                raise Crash
            if number != self.lose_in or done != 1:
                yield answer

    def evaluate(self, body, starts):
        return self.inner.evaluate(body, starts)

    def close(self):
        self.inner.close()


def federation(workload, folder, snapshot, **trouble):
    return Federation(
        workload, Troubled(Serial(Site(workload, CPU, folder / "clients")), **trouble), snapshot
    )


def advance(server, folder, until):
    """Run rounds, with a checkpoint after each."""
    while server.snapshot.round < until:
        server.step()
        save_snapshot(folder / "checkpoints", server.snapshot)


@every_memory
def test_disturbed_and_undisturbed_runs_end_alike(algorithm, settings, tmp_path):
    workload = build_workload(
        tiny_plan(algorithm, **{"data.clients": 6, "clients_per_round": 5}, **settings)
    )
    start = first_snapshot(workload)
    calm = federation(workload, tmp_path / "calm", start)
    (tmp_path / "calm").mkdir()
    advance(calm, tmp_path / "calm", ROUNDS)

    folder = tmp_path / "stormy"
    folder.mkdir()
    server = federation(workload, folder, start, crash_in=3, lose_in=4)
    with pytest.raises(Crash):  # after 3 of 5 clients replied
        advance(server, folder, ROUNDS)
    server = federation(workload, folder, load_snapshot(folder / "checkpoints")[0], lose_in=4)
    advance(server, folder, 4)  # round 4 loses a reply, and is over
    assert server.snapshot.accepted.tolist() != calm.snapshot.accepted.tolist()
    damaged = folder / "checkpoints" / LAST
    damaged.write_bytes(
        damaged.read_bytes()[:-40]
    )  # back to round 3: the lost reply's round runs again
    snapshot, warning = load_snapshot(folder / "checkpoints")
    assert snapshot.round == 3
    assert "damaged" in warning
    advance(federation(workload, folder, snapshot), folder, ROUNDS)

    final, _ = load_snapshot(folder / "checkpoints")
    for vector, params in calm.snapshot.server.items():
        assert fingerprint(final.server[vector]) == fingerprint(params)


@every_memory
def test_a_real_kill_leaves_no_trace(algorithm, settings, tmp_path):
    """Three clients a round take two steps each, of one pass or two: in the 18th, others of that round have replied."""
    mortal = {"rounds": ROUNDS, "model.name": "laws_world:mortal_net"}
    plan = tiny_plan(algorithm, **mortal, **settings)
    (tmp_path / "plan.toml").write_text(dump_plan(plan))
    command = [
        sys.executable,
        "-m",
        "fedwsq.cli",
        "run",
        "plan.toml",
        "--out",
        "killed",
        "--workers",
        "1",
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TEST_KILLED_IN": "18"}
    assert (
        subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL).returncode
        == -signal.SIGKILL
    )
    assert len(rows(tmp_path / "killed")) == (1 if algorithm == "fedsmoo" else 2)
    with Run.resume(tmp_path / "killed", workers=1) as resumed:
        assert resumed.go().weights == run(plan, out=tmp_path / "calm", workers=1).weights
