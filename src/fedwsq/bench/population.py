"""A hundred thousand clients against a hundred: who is not asked costs nothing."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedwsq.bench.figure import REPEATS, Figure, figure, in_turn, ratios
from fedwsq.bench.processes import Watched, can_watch, watch
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import simulate
from fedwsq.plan import load_plan
from fedwsq.runs.checkpoint import save_snapshot


class Point(NamedTuple):
    """A population, and how many of it a round asks."""

    clients: int
    asked: int

    def name(self, what: str) -> str:
        """What a figure of this point is called."""
        return f"{what}, {self.clients:,} clients, {self.asked} asked"


ASKED = 50
AMONG = 1_000
POPULATIONS = [Point(clients, ASKED) for clients in (100, 1_000, 10_000, 100_000)]
COHORTS = [Point(AMONG, asked) for asked in (10, 50, 200, 1_000)]
# The two rows cross in a point, which is measured once.
OTHER_COHORTS = [point for point in COHORTS if point not in POPULATIONS]
POINTS = [*POPULATIONS, *OTHER_COHORTS]
FEW = POPULATIONS[0]
MANY = POPULATIONS[-1]
EACH = 10  # examples a client: a million in all
CPU = torch.device("cpu")


def measure() -> list[Figure]:
    """Time of a round, memory and start-up, as population and cohort grow."""
    times: dict[Point, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for points, repeats in ((POPULATIONS, 15), (OTHER_COHORTS, REPEATS)):
            works = [one_round(Path(folder), point) for point in points]
            times |= dict(zip(points, in_turn(works, repeats), strict=True))

    grown = ratios(times[MANY], times[FEW])
    what = f"round, {MANY.clients:,} clients / {FEW.clients}"
    found = [figure(what, grown, must=1.05, better="lower")]
    for point in POINTS:
        milliseconds = [1e3 * seconds for seconds in times[point]]
        found.append(figure(point.name("round"), milliseconds, unit="ms"))
    if can_watch():
        return found + memory()
    print(
        "no figures of memory and start-up: this system has no /proc/PID/smaps_rollup",
        file=sys.stderr,
    )
    return found


def settings(point: Point) -> dict[str, Any]:
    """The quick start on as many made-up pictures as the clients need to hold ten each."""
    return {
        "rounds": 10**6,
        "eval_every": 10**6,
        "clients_per_round": point.asked,
        "data": {
            "name": "synthetic",
            "samples": EACH * point.clients,
            "test_samples": 100,
            "size": 4,
            "clients": point.clients,
            "partition": "dirichlet",
        },
        "training.epochs": 1,
        "training.batch_size": EACH,
    }


def one_round(folder: Path, point: Point) -> Callable[[], None]:
    """A round and its checkpoint, late in a run: every client took part once and is remembered."""
    simulation = simulate(load_plan("quickstart", settings(point)))
    accepted = np.ones(point.clients, np.int32)
    start = replace(first_snapshot(simulation.charter), round=1, accepted=accepted)
    server = simulation.server(simulation.serial(CPU), start)

    def step() -> None:
        server.step()
        save_snapshot(folder / f"{point.clients}-{point.asked}", server.snapshot)

    return step


def memory() -> list[Figure]:
    """The memory of a run on two workers, and what many clients add to it and to its start."""
    seen: dict[Point, list[Watched]] = {point: [watch(words(point))] for point in POINTS}
    # Runs are slow: only the two that are compared are repeated.
    for _ in range(REPEATS - 1):
        for point in (FEW, MANY):
            seen[point].append(watch(words(point)))

    pairs = list(zip(seen[FEW], seen[MANY], strict=True))
    megabytes = [many.peak_megabytes - few.peak_megabytes for few, many in pairs]
    seconds = [many.first_row_seconds - few.first_row_seconds for few, many in pairs]
    what = f"{MANY.clients:,} clients - {FEW.clients}"
    few = seen[FEW][0]
    note = f"{few.peak_megabytes:.0f} MB and {few.first_row_seconds:.1f} s with {FEW.clients}"
    found = [
        figure(f"memory, {what}", megabytes, unit="MB", must=200, better="lower", note=note),
        figure(f"start to first row, {what}", seconds, unit="s", must=5, better="lower"),
    ]
    for point in POINTS:
        peaks = [run.peak_megabytes for run in seen[point]]
        found.append(figure(point.name("memory"), peaks, unit="MB"))
    return found


def words(point: Point) -> list[str]:
    """A run of three rounds over a million examples, however many hold them; nobody trains."""
    samples = EACH * MANY.clients
    return [
        "quickstart",
        "rounds=3",
        "eval_every=1000",
        f"clients_per_round={point.asked}",
        "algorithm=fedwsq.bench.round:Idle",
        "data.partition=dirichlet",
        f"data={{name='synthetic', samples={samples}, test_samples=100, size=4, "
        f"clients={point.clients}}}",
        "--workers",
        "2",
    ]


def draw(picture: Any, figures: Sequence[Figure]) -> None:
    """Time of a round and memory, over the population and over the cohort, with matplotlib."""
    found = {each.name: each for each in figures}
    panels = picture.subplots(2, 2, sharex="col", sharey="row")
    for row, what, unit in zip(panels, ("round", "memory"), ("ms", "MB"), strict=True):
        by_population = {point.clients: found.get(point.name(what)) for point in POPULATIONS}
        by_cohort = {point.asked: found.get(point.name(what)) for point in COHORTS}
        _curve(row[0], by_population)
        _curve(row[1], by_cohort)
        row[0].set_ylabel(f"{what}, {unit}")
    panels[0][0].set_yscale("log")
    panels[1][0].set_ylim(0, 1.1 * panels[1][0].get_ylim()[1])
    panels[1][0].set(xscale="log", xlabel=f"clients, {ASKED} of them asked")
    panels[1][1].set(xscale="log", xlabel=f"clients asked, of {AMONG:,}")


def _curve(axes: Any, figures: dict[int, Figure | None]) -> None:
    """The figures over their number of clients, as far as they were measured."""
    shown = {number: each for number, each in figures.items() if each is not None}
    values = [each.value for each in shown.values()]
    below = [each.value - each.low for each in shown.values()]
    above = [each.high - each.value for each in shown.values()]
    axes.errorbar(list(shown), values, [below, above], marker="o", capsize=3)
    axes.grid(alpha=0.3)
