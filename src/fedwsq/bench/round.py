"""What a round costs besides training, and the memory of a whole run."""

import itertools
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedwsq.algorithms import FedAvg
from fedwsq.bench.figure import REPEATS, Figure, figure
from fedwsq.bench.processes import can_watch, watch
from fedwsq.core.tree import scale
from fedwsq.core.types import State, Update, Vectors
from fedwsq.models import Staged
from fedwsq.models.staged import conv_norm
from fedwsq.plan import load_plan
from fedwsq.runs.run import Run
from fedwsq.training import LocalTask, Trained

ROUNDS = 24
WARM_UP = 4
NEVER = 10**6  # rounds


@dataclass(frozen=True)
class Idle(FedAvg):
    """A client that does not train: its update is a thousandth of what it received."""

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """An update to be coded and sent like any other."""
        delta = scale(1e-3, received["params"])
        return task.update(Trained({}, 0, 0.0, 0.0), delta=delta), client


def small(classes: int = 10, channels: int = 1) -> Staged:
    """Six thousand parameters: 25 kB in float32."""
    stage = nn.Sequential(nn.ReLU(), conv_norm(16, 38))
    return Staged(conv_norm(channels, 16), [stage], nn.Linear(38, classes))


def measure() -> list[Figure]:
    """A round of a hundred idle clients, and the peak memory of a ResNet-18 run with a hundred."""
    found = [
        idle_rounds(workers, checkpoint_every)
        for workers, checkpoint_every in itertools.product((1, 2), (NEVER, 1))
    ]
    if can_watch():
        found.append(memory())
    else:
        print("no memory figure: this system has no /proc/PID/smaps_rollup", file=sys.stderr)
    return found


def idle_rounds(workers: int, checkpoint_every: int) -> Figure:
    """Milliseconds from row to row: sampling, messages, codec, fold, rows, checkpoints."""
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "eval_every": NEVER,
        "checkpoint_every": checkpoint_every,
        "clients_per_round": 100,
        "data": {
            "name": "synthetic",
            "samples": 1000,
            "test_samples": 100,
            "clients": 100,
            "partition": "iid",
        },
        "model": {"name": "fedwsq.bench.round:small", "standardize": "ws"},
        "algorithm": "fedwsq.bench.round:Idle",
        "uplink.bits": 1,
    }
    plan = load_plan("quickstart", settings)
    ends: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Run.create(plan, Path(folder, "run"), workers, "cpu") as run,
    ):
        run.go([lambda record: ends.append(1e3 * time.perf_counter())])

    # Without those that warm up, and the last, which evaluates.
    counted = ends[WARM_UP - 1 : -1]
    rounds = [after - before for before, after in itertools.pairwise(counted)]
    how = f"{workers} workers" if workers > 1 else "one process"
    saved = "a checkpoint a round" if checkpoint_every == 1 else "no checkpoints"
    name = f"idle round, 100 clients, {how}, {saved}"
    return figure(name, rounds, unit="ms", must=100, better="lower")


def memory() -> Figure:
    """Gigabytes of a run with 100 clients of ResNet-18 on 2 workers, all processes together."""
    what = "CIFAR-10"
    data: list[str] = []
    if not os.environ.get("FEDWSQ_DATA"):
        what = "made-up pictures"
        data = [
            "data.name=fedwsq.bench.bare:images",
            "data.samples=50000",
            "data.test_samples=1000",
        ]
    # Steps, updates and messages are as large as in a run of the paper's protocol, but fewer.
    less = ["rounds=1", "clients_per_round=2", "training.epochs=1", "training.batch_size=50"]
    seen = [watch(["cifar10", *less, *data, "--workers", "2"]) for _ in range(REPEATS)]
    return figure(
        "memory, 100 clients, ResNet-18, 2 workers",
        [run.peak_megabytes / 1e3 for run in seen],
        unit="GB",
        must=2.5,
        better="lower",
        note=f"{what}, round of {seen[-1].records[-1].seconds:.0f} s",
    )
