"""The README's picture, for `claims.py`: accuracy against all bytes sent, and the way between."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedwsq.cli.plot import blank, save
from fedwsq.report.curves import columns, curve
from fedwsq.report.looks import COLOURS
from fedwsq.runs.reading import Reading
from kept import Factor, both_ways, factor
from lean import Scene

SIZE = (7.2, 4.2)  # inches
OURS = "fedwsq-lean"
# What is drawn beside it, by what `both_ways` calls it, and what people call it.
BESIDE = {"fedws": "FedWS", "fedacg + ws": "FedACG with WS"}
INK = {"FedAvg": COLOURS[0], "FedWS": COLOURS[3], "FedACG with WS": COLOURS[2], OURS: COLOURS[1]}


def headline(found: Sequence[Scene]) -> Scene | None:
    """Of the scenes where ours was run with every seed of FedAvg: most seeds, then most rounds."""
    whole = [scene for scene in found if set(ours(scene)) == set(scene.reference)]
    return max(whole, key=lambda scene: (len(scene.reference), scene.rounds), default=None)


def ours(scene: Scene) -> Mapping[int, Reading]:
    for runs in scene.sides.values():
        if both_ways(runs[min(runs)].settings).startswith(OURS):
            return runs
    return {}


def lines(scene: Scene) -> dict[str, Mapping[int, Reading]]:
    """What is drawn, by name: FedAvg at its best learning rate, its float32 betters, and ours."""
    found: dict[str, Mapping[int, Reading]] = {"FedAvg": scene.reference}
    for runs in scene.sides.values():
        name = BESIDE.get(both_ways(runs[min(runs)].settings))
        if name is not None:
            found[name] = runs
    return {**found, OURS: ours(scene)}


def times_fewer(scene: Scene) -> Factor | None:
    """What FedAvg sends to where it ends over what ours does."""
    costs = scene.costs(ours(scene))
    theirs = scene.costs(scene.reference)
    return factor([theirs[seed] / cost for seed, cost in costs.items() if seed in theirs])


def draw(scene: Scene, path: Path) -> None:
    figure = blank(path, *SIZE)
    axes = figure.subplots()
    for name, runs in lines(scene).items():
        _draw_line(axes, name, runs)
    _draw_distance(axes, scene)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("all bytes sent, up and down, MB")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(f"{scene.words}, {scene.rounds} rounds", fontsize="medium")
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    save(figure, path)


def _draw_line(axes: Any, name: str, runs: Mapping[int, Reading]) -> None:
    line = curve([columns(run.rows) for run in runs.values()], "bytes", "smoothed")
    megabytes = line.x / 1e6
    ink = INK[name]
    axes.fill_between(megabytes, 100 * line.low, 100 * line.high, color=ink, alpha=0.18, lw=0)
    seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
    axes.plot(megabytes, 100 * line.mean, color=ink, lw=1.8, label=f"{name} ({seeds})")


def _draw_distance(axes: Any, scene: Scene) -> None:
    """An arrow from what FedAvg takes to what ours takes to the same accuracy."""
    times = times_fewer(scene)
    if times is None:
        return
    costs = scene.costs(ours(scene)).values()
    theirs = scene.costs(scene.reference).values()
    start = sum(theirs) / len(theirs) / 1e6
    end = sum(costs) / len(costs) / 1e6
    targets = [100 * scene.target(seed) for seed in scene.reference]
    height = sum(targets) / len(targets)
    arrow = {"arrowstyle": "->", "lw": 1.2, "color": "0.25"}
    axes.annotate("", xy=(end, height), xytext=(start, height), arrowprops=arrow)
    words = f"{times.middle:.0f} times fewer bytes"
    if times.low is not None:
        words += f"\n95 %: {times.low:.0f} to {times.high:.0f}"
    # Under the arrow's end: our line goes on above it, and the others are far to the right.
    axes.annotate(
        words,
        xy=(end, height),
        xytext=(14, -6),
        textcoords="offset points",
        va="top",
        fontsize="small",
    )
