"""A hundred thousand clients against a hundred: who is not asked costs nothing."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwsq.bench.figure import Figure, figure, in_turn, ratios
from fedwsq.bench.processes import can_watch, watch
from fedwsq.config import load_plan
from fedwsq.federation.checkpoint import save_snapshot
from fedwsq.federation.federation import Federation, first_snapshot
from fedwsq.federation.inprocess import Serial
from fedwsq.federation.site import Site
from fedwsq.federation.workload import build_workload

FEW, MANY = 100, 100_000
POPULATIONS = (100, 1_000, 10_000, 100_000)
COHORTS = (10, 50, 100, 200)
EACH = 10  # examples a client: a million in all
CPU = torch.device("cpu")


def measure() -> list[Figure]:
    """Time of a round, memory and start-up, and how a round's time grows with population and cohort."""
    with tempfile.TemporaryDirectory() as folder:
        works = [one_round(Path(folder), clients, 50) for clients in POPULATIONS]
        times = dict(zip(POPULATIONS, in_turn(works, repeats=15), strict=True))
        cohorts = dict(zip(COHORTS, in_turn([one_round(Path(folder), 1000, n) for n in COHORTS]), strict=True))
    found = [
        figure(f"round, {MANY:,} clients / {FEW}", ratios(times[MANY], times[FEW]), must=1.05, better="lower"),
        *([*against_few()] if can_watch() else []),
    ]
    if not can_watch():
        print("no figures of memory and start-up: this system has no /proc/PID/smaps_rollup", file=sys.stderr)
    for clients, seconds in times.items():
        found.append(figure(f"round, {clients:,} clients, 50 asked", [1e3 * s for s in seconds], unit="ms"))
    for asked, seconds in cohorts.items():
        found.append(figure(f"round, 1,000 clients, {asked} asked", [1e3 * s for s in seconds], unit="ms"))
    return found


def settings(clients: int, asked: int) -> dict[str, Any]:
    """The quick start on as many made-up pictures as the clients need to hold ten each."""
    return {
        "rounds": 10**6,
        "eval_every": 10**6,
        "clients_per_round": asked,
        "data": {
            "name": "synthetic",
            "samples": EACH * clients,
            "test_samples": 100,
            "size": 4,
            "clients": clients,
            "partition": "dirichlet",
        },
        "training.epochs": 1,
        "training.batch_size": EACH,
    }


def one_round(folder: Path, clients: int, asked: int) -> Callable[[], None]:
    """A round and its checkpoint, late in a run: every client has taken part once, and is remembered."""
    workload = build_workload(load_plan("quickstart", settings(clients, asked)))
    start = replace(first_snapshot(workload), round=1, accepted=np.ones(clients, np.int32))
    federation = Federation(workload, Serial(Site(workload, CPU)), start)

    def step() -> None:
        federation.step()
        save_snapshot(folder / str(clients), federation.snapshot)

    return step


def against_few(repeats: int = 3) -> list[Figure]:
    """What they add to the memory of a run on two workers, and to the time to its first row; with the same data."""
    megabytes, seconds = list[float](), list[float]()
    for _ in range(repeats):
        few, many = (watch(_words(clients)) for clients in (FEW, MANY))
        megabytes.append(many.peak_megabytes - few.peak_megabytes)
        seconds.append(many.first_row_seconds - few.first_row_seconds)
    what = f"{MANY:,} clients - {FEW}"
    note = f"{few.peak_megabytes:.0f} MB and {few.first_row_seconds:.1f} s with {FEW}"
    return [
        figure(f"memory, {what}", megabytes, unit="MB", must=200, better="lower", note=note),
        figure(f"start to first row, {what}", seconds, unit="s", must=5, better="lower"),
    ]


def _words(clients: int) -> list[str]:
    """A run of three rounds over a million examples, however many hold them; nobody trains."""
    return [
        "quickstart", "rounds=3", "eval_every=1000", "algorithm=fedwsq.bench.round:Idle",
        f"data={{name='synthetic', samples={EACH * MANY}, test_samples=100, size=4, clients={clients}}}",
        "data.partition=dirichlet", "--workers", "2",
    ]  # fmt: skip
