"""A hundred thousand clients against a hundred: who is not asked costs nothing."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwsq.bench.figure import REPEATS, Figure, figure, in_turn, ratios
from fedwsq.bench.processes import Watched, can_watch, watch
from fedwsq.federation.server import Federation, first_snapshot
from fedwsq.federation.site import Site
from fedwsq.federation.workload import build_workload
from fedwsq.plan.build import load_plan
from fedwsq.runs.checkpoint import save_snapshot
from fedwsq.transports.pool import Serial

POPULATIONS = (100, 1_000, 10_000, 100_000)  # of which ASKED take part
COHORTS = (10, 50, 200, 1_000)  # out of AMONG
ASKED, AMONG = 50, 1_000
FEW, MANY = (POPULATIONS[0], ASKED), (POPULATIONS[-1], ASKED)
EACH_POPULATION = tuple((n, ASKED) for n in POPULATIONS)
EACH_COHORT = tuple((AMONG, n) for n in COHORTS if n != ASKED)
POINTS = (*EACH_POPULATION, *EACH_COHORT)
EACH = 10  # examples a client: a million in all
CPU = torch.device("cpu")


def measure() -> list[Figure]:
    """Time of a round, memory and start-up, as population and cohort grow."""
    with tempfile.TemporaryDirectory() as folder:
        times = dict[tuple[int, int], list[float]]()
        for points, repeats in ((EACH_POPULATION, 15), (EACH_COHORT, REPEATS)):
            works = [one_round(Path(folder), *point) for point in points]
            times |= dict(zip(points, in_turn(works, repeats), strict=True))
    grown = ratios(times[MANY], times[FEW])
    found = [figure(f"round, {MANY[0]:,} clients / {FEW[0]}", grown, must=1.05, better="lower")]
    found += [
        figure(name("round", *point), [1e3 * s for s in times[point]], unit="ms")
        for point in POINTS
    ]
    if can_watch():
        return found + memory()
    print(
        "no figures of memory and start-up: this system has no /proc/PID/smaps_rollup",
        file=sys.stderr,
    )
    return found


def name(what: str, clients: int, asked: int) -> str:
    """What a figure of this population and cohort is called."""
    return f"{what}, {clients:,} clients, {asked} asked"


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
        save_snapshot(folder / f"{clients}-{asked}", federation.snapshot)

    return step


def memory() -> list[Figure]:
    """The memory of a run on two workers, and what many clients add to it and to the time to its first row."""
    seen: dict[tuple[int, int], list[Watched]] = {point: [] for point in POINTS}
    for i in range(REPEATS):
        for point in POINTS if i == 0 else (FEW, MANY):
            seen[point].append(watch(words(*point)))
    pairs = list(zip(seen[FEW], seen[MANY], strict=True))
    megabytes = [many.peak_megabytes - few.peak_megabytes for few, many in pairs]
    seconds = [many.first_row_seconds - few.first_row_seconds for few, many in pairs]
    what = f"{MANY[0]:,} clients - {FEW[0]}"
    note = f"{pairs[0][0].peak_megabytes:.0f} MB and {pairs[0][0].first_row_seconds:.1f} s with {FEW[0]}"
    return [
        figure(f"memory, {what}", megabytes, unit="MB", must=200, better="lower", note=note),
        figure(f"start to first row, {what}", seconds, unit="s", must=5, better="lower"),
        *(
            figure(name("memory", *point), [run.peak_megabytes for run in seen[point]], unit="MB")
            for point in POINTS
        ),
    ]


def words(clients: int, asked: int) -> list[str]:
    """A run of three rounds over a million examples, however many hold them; nobody trains."""
    return [
        "quickstart", "rounds=3", "eval_every=1000", f"clients_per_round={asked}",
        "algorithm=fedwsq.bench.round:Idle", "data.partition=dirichlet",
        f"data={{name='synthetic', samples={EACH * MANY[0]}, test_samples=100, size=4, clients={clients}}}",
        "--workers", "2",
    ]  # fmt: skip


def draw(picture: Any, figures: Sequence[Figure]) -> None:
    """Time of a round and memory, over the population and over the cohort, on a figure of matplotlib."""
    found = {each.name: each for each in figures}
    panels = picture.subplots(2, 2, sharex="col", sharey="row")
    for row, (what, unit) in zip(panels, (("round", "ms"), ("memory", "MB")), strict=True):
        for axes, points in zip(
            row,
            ({n: (n, ASKED) for n in POPULATIONS}, {n: (AMONG, n) for n in COHORTS}),
            strict=True,
        ):
            shown = {
                n: found[name(what, *point)]
                for n, point in points.items()
                if name(what, *point) in found
            }
            ends = [
                [each.value - each.low for each in shown.values()],
                [each.high - each.value for each in shown.values()],
            ]
            axes.errorbar(
                list(shown), [each.value for each in shown.values()], ends, marker="o", capsize=3
            )
            axes.grid(alpha=0.3)
        row[0].set_ylabel(f"{what}, {unit}")
    panels[0][0].set_yscale("log")
    panels[1][0].set_ylim(0, 1.1 * panels[1][0].get_ylim()[1])
    panels[1][0].set(xscale="log", xlabel=f"clients, {ASKED} of them asked")
    panels[1][1].set(xscale="log", xlabel=f"clients asked, of {AMONG:,}")
