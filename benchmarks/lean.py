"""Bytes to accuracy, for `claims.py`: what it takes to come to where FedAvg comes to, and stay.

The target of a seed is the mean of float32 FedAvg's last ten evaluations, at the best of the
learning rates that were tried with it. What a run takes is all bytes, up and down, until its
smoothed accuracy is there and stays there to the end. A short run has no such target: its last ten
evaluations are most of its way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedwsq.cli.plot import blank, save
from fedwsq.report.compare import (
    PLATEAU,
    accuracies,
    bytes_to,
    held_from,
    plateau,
    smoothed,
    total_bytes,
)
from fedwsq.report.estimate import estimate
from fedwsq.report.figures import Panel, draw_curves, grid_size
from fedwsq.report.groups import group_runs
from fedwsq.runs.reading import Reading
from kept import SAME, as_of, both_ways, setting_words, shown, shown_factor

FIGURE = "bytes_to_accuracy.png"
LEGEND = 9.2  # inches that three names beside each other take
REFERENCE = "fedavg"
ENOUGH = 4 * PLATEAU  # evaluations of a run whose last ones are its end
# What the method saves and what the code saves are told apart by these, in float32.
BESIDE = {"FedWS": "fedws", "FedACG with WS": "fedacg + ws"}
# Compositions may have learning rates and broadcasts of their own.
SCENE = tuple(name for name in SAME if not name.startswith(("training.lr", "downlink.")))

HOW = """
What a composition sends, up and down, until its smoothed accuracy reaches the mean of float32
FedAvg's last ten evaluations and stays there to the end; seed by seed, as both have the same
split, clients and start, and FedAvg at the best of the learning rates tried with that seed.
Smoothed is a moving average of 0.9 a round, seeded with the first evaluation; where only each
third round is evaluated, an accuracy counts for the three rounds up to it. It is told where FedAvg
was evaluated forty times or more, so that the last ten are its end and not its way. Factors are
the geometric mean over seeds with a 95 % interval, and are left out where not every seed gets
there:

- **FedAvg**, **FedWS**, **FedACG with WS**: what these take in float32 to the same accuracy by the
  same rule, over what this one takes. The last two are what coding saves, the method being the
  same or a near one;
- **FedAvg's whole run**: all that FedAvg sends in as many rounds as it was given, over that.
"""


@dataclass(frozen=True)
class Scene:
    """One setting after as many rounds as its FedAvg has; runs by composition and seed."""

    words: str
    rounds: int
    reference: Mapping[int, Reading]
    rates: Mapping[float, float]  # what FedAvg came to, by learning rate, in percent
    tried: Sequence[int]  # the seeds that all rates were tried with
    sides: Mapping[str, Mapping[int, Reading]]

    def target(self, seed: int) -> float:
        found = plateau(self.reference[seed])
        return 1.0 if found is None else found

    def costs(self, runs: Mapping[int, Reading]) -> dict[int, int]:
        """Bytes to the target of each seed that gets there."""
        found = {}
        for seed, run in runs.items():
            needed = bytes_to(run, self.target(seed))
            if needed is not None:
                found[seed] = needed
        return found

    def mean_cost(self, name: str) -> float:
        """Infinite where not every seed gets there."""
        runs = self.sides[name]
        costs = self.costs(runs)
        return sum(costs.values()) / len(costs) if len(costs) == len(runs) else math.inf

    def least(self, method: str) -> dict[int, int]:
        """What a method takes: of several settings of it, the one that takes least."""
        names = []
        for name, runs in self.sides.items():
            if both_ways(runs[min(runs)].settings) == method:
                names.append(name)
        if not names:
            return {}
        return self.costs(self.sides[min(names, key=self.mean_cost)])

    @property
    def coded_down(self) -> bool:
        """Whether some composition codes its broadcasts: else there is little to save."""
        firsts = [runs[min(runs)] for runs in self.sides.values()]
        return any(run.settings["downlink.codec.name"] != "float32" for run in firsts)

    def above(self, runs: Mapping[int, Reading]) -> list[float]:
        """Points that each seed ends above FedAvg, both smoothed."""
        found = []
        for seed, run in runs.items():
            end, theirs = smoothed(run), smoothed(self.reference[seed])
            if end is not None and theirs is not None:
                found.append(100 * (end - theirs))
        return found

    def whole(self) -> dict[int, int]:
        return {seed: sum(map(total_bytes, run.rows)) for seed, run in self.reference.items()}


def scenes(runs: Sequence[Reading]) -> list[Scene]:
    """Every setting that has a float32 FedAvg and something beside it."""
    finished = [run for run in runs if run.state == "finished"]
    found: dict[tuple[str, ...], list[Reading]] = {}
    for run in finished:
        found.setdefault(_key(run), []).append(run)
    made = []
    for alike in found.values():
        averaging = [run for run in alike if both_ways(run.settings) == REFERENCE]
        lengths = {len(run.rows) for run in averaging if len(accuracies(run)) >= ENOUGH}
        made += [_scene(alike, rounds) for rounds in sorted(lengths)]
    return [scene for scene in made if len(scene.sides) > 1]


def told(runs: Sequence[Reading]) -> list[Scene]:
    """The scenes that bytes to accuracy are told of."""
    return [scene for scene in scenes(runs) if scene.coded_down]


def _key(run: Reading) -> tuple[str, ...]:
    return tuple(str(run.settings.get(name, "")) for name in SCENE)


def _scene(alike: Sequence[Reading], rounds: int) -> Scene:
    # Of two runs of a seed the shorter one comes last and counts: it was evaluated at its end.
    longest_first = sorted(alike, key=lambda run: -run.rows[-1].round)
    long_enough = [as_of(run, rounds) for run in longest_first if run.rows[-1].round >= rounds]
    averaging: dict[float, dict[int, Reading]] = {}
    for run in long_enough:
        if both_ways(run.settings) == REFERENCE:
            rate = float(run.settings["training.lr"])
            averaging.setdefault(rate, {})[run.seed] = run
    # One rate may have been run with more seeds than another: they are told side by side on the
    # seeds that all have, and each seed is held against its own best.
    seeds = set.intersection(*(set(runs) for runs in averaging.values()))
    rates = {}
    reference: dict[int, Reading] = {}
    for rate, runs in averaging.items():
        levels = [_level(runs[seed]) for seed in seeds or runs]
        rates[rate] = 100 * sum(levels) / len(levels)
        for seed, run in runs.items():
            best = reference.get(seed)
            if best is None or _level(run) > _level(best):
                reference[seed] = run

    sides: dict[str, dict[int, Reading]] = {}
    for group in group_runs(long_enough, both_ways):
        matched = {run.seed: run for run in group.runs if run.seed in reference}
        if matched:
            sides[group.label] = matched
    words = setting_words({**reference[min(reference)].settings, "training.lr": 0.1})
    return Scene(words, rounds, reference, rates, sorted(seeds), sides)


def _level(run: Reading) -> float:
    """What a run came to."""
    found = plateau(run)
    return 0.0 if found is None else found


def line(scene: Scene, name: str, beside: Mapping[str, Mapping[int, int]]) -> str:
    """One composition: where it gets there, what it takes, and how many times less that is."""
    runs = scene.sides[name]
    costs = scene.costs(runs)
    above = scene.above(runs)
    cells = [name]
    if len(costs) < len(runs):
        cells += [f"by {len(costs)} of {len(runs)} seeds", *[""] * (1 + len(beside))]
        return f"| {' | '.join([*cells, shown(estimate(above))])} |\n"
    rounds = [held_from(run, scene.target(seed)) for seed, run in runs.items()]
    cells.append(", ".join(str(number) for number in rounds))
    cells.append(shown(estimate([cost / 1e6 for cost in costs.values()])))
    for others in beside.values():
        cells.append(shown_factor([others[seed] / costs[seed] for seed in costs if seed in others]))
    return f"| {' | '.join([*cells, shown(estimate(above))])} |\n"


def table(scene: Scene) -> str:
    beside: dict[str, Mapping[int, int]] = {
        "FedAvg": scene.costs(scene.reference),
    }
    for title, method in BESIDE.items():
        beside[title] = scene.least(method)
    beside["FedAvg's whole run"] = scene.whole()
    end = "points above FedAvg at the end"
    head = ["composition", "held from round", "MB to there", *beside, end]
    text = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    by_cost = sorted(scene.sides, key=scene.mean_cost)
    return text + "".join(line(scene, name, beside) for name in by_cost)


def section(found: Sequence[Scene]) -> str:
    text = f"\n## Bytes to accuracy\n{HOW}"
    if not found:
        return f"{text}\n**not run yet**\n"
    text += f"\n![Smoothed accuracy against all bytes sent]({FIGURE})\n"
    for scene in found:
        rates = [f"{value:.1f} at {rate:g}" for rate, value in sorted(scene.rates.items())]
        targets = [f"{100 * scene.target(seed):.1f}" for seed in sorted(scene.reference)]
        text += f"\n### {scene.words}, {scene.rounds} rounds\n\n"
        text += f"FedAvg comes to {', '.join(targets)} % ({_seeds(sorted(scene.reference))}). "
        text += f"Learning rates tried for it ({_seeds(scene.tried)}): {', '.join(rates)}.\n\n"
        text += table(scene)
    return text


def _seeds(seeds: Sequence[int]) -> str:
    word = "seed" if len(seeds) == 1 else "seeds"
    return f"{word} {', '.join(map(str, seeds))}" if seeds else "each with other seeds"


def draw(found: Sequence[Scene], path: Path) -> None:
    """A panel for each setting: smoothed accuracy against all bytes."""
    panels = []
    for scene in found:
        groups = []
        for name, runs in scene.sides.items():
            (group,) = group_runs(runs.values())
            groups.append(replace(group, label=name))
        panels.append(Panel(f"{scene.words},\n{scene.rounds} rounds", groups))
    if not panels:
        return
    width, height = grid_size(len(panels))
    figure = blank(path, max(width, LEGEND), height)
    draw_curves(figure, panels, "bytes", average=True)
    save(figure, path)
