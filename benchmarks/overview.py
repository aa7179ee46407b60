"""The first looks at the kept runs, for `claims.py`: answers in a line, accuracies, differences."""

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedwsq.cli.plot import blank, save
from fedwsq.plan.read import Settings
from fedwsq.report.estimate import Estimate, estimate
from kept import SAME, Percents, Side, percents, setting_words, shown

FIGURE = "differences.png"
WIDTH = 9.0  # inches
ROW = 0.34  # inches that a claim takes in the figure
SPREAD = 0.6  # of a row: what its comparisons have beside each other
COLOURS = {"holds": "#0072b2", "against": "#d55e00", "undecided": "#888888"}
NAMES = {"holds": "for the claim", "against": "against it", "undecided": "within noise"}
BASES = ("fedws", "fedavg")  # what others are held against: the first that was run
SPLITS = ("data.partition.name", "data.partition.alpha")


def anchor(title: str) -> str:
    """Where a heading is found on its page: `rho-hardly-matters`."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def verdicts(answers: Mapping[str, str]) -> str:
    """One line a claim: its name, which leads to it, and the answer."""
    text = "| claim | answer |\n|---|---|\n"
    for name, verdict in answers.items():
        text += f"| [{name}](#{anchor(name)}) | {verdict} |\n"
    return text


def accuracies(settings: Mapping[tuple[str, ...], Mapping[str, Side]]) -> str:
    """A table a setting: each seed by itself, as seeds differ more than methods do."""
    text = ""
    for splits in families(settings):
        rounds = usual_length([side for each in splits.values() for side in each.values()])
        for sides in splits.values():
            found = {name: percents(side.after(rounds)) for name, side in sides.items()}
            reached = {name: each for name, each in found.items() if each.by_seed}
            if len(reached) > 1:
                words = setting_words(next(iter(sides.values())).settings)
                text += f"\n**{words}, after {rounds} rounds**\n\n{_standing(reached)}"
    return text


def _standing(found: Mapping[str, Percents]) -> str:
    """Methods with what they send up and come to, the best first."""
    seeds = sorted({seed for each in found.values() for seed in each.by_seed})
    base = next((name for name in BASES if name in found), None)
    head = ["method", "MB up", *(f"seed {seed}" for seed in seeds)]
    if base is not None:
        head.append(f"against {base}")
    text = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"

    above = {}
    for name, each in found.items():
        above[name] = _above(each, found[base]) if base is not None else None
    for name in sorted(found, key=lambda name: _rank(above[name], found[name])):
        each = found[name]
        cells = [name, f"{each.up_megabytes:.1f}"]
        cells += [f"{each.by_seed[seed]:.2f}" if seed in each.by_seed else "" for seed in seeds]
        if base is not None:
            cells.append("" if name == base else shown(above[name]))
        text += f"| {' | '.join(cells)} |\n"
    return text


def _above(one: Percents, other: Percents) -> Estimate | None:
    """How far, over the seeds of both."""
    both = one.by_seed.keys() & other.by_seed.keys()
    return estimate([one.by_seed[seed] - other.by_seed[seed] for seed in both])


def _rank(above: Estimate | None, reached: Percents) -> tuple[bool, float]:
    """By the difference to what all are held against, where there is one."""
    if above is None:
        return True, -statistics.fmean(reached.by_seed.values())
    return False, -above.mean


def families(
    settings: Mapping[tuple[str, ...], Mapping[str, Side]],
) -> list[dict[str, Mapping[str, Side]]]:
    """Settings that differ in nothing but their split, by the name of that."""
    found: dict[tuple[str, ...], dict[str, Mapping[str, Side]]] = {}
    places = [SAME.index(name) for name in SPLITS]
    for same, sides in settings.items():
        key = tuple(word for place, word in enumerate(same) if place not in places)
        first = next(iter(sides.values()))
        found.setdefault(key, {})[split_name(first.settings)] = sides
    # From the most skewed to i.i.d.
    return [dict(sorted(splits.items())) for splits in found.values()]


def split_name(settings: Settings) -> str:
    if "data.partition.alpha" in settings:
        return f"alpha {settings['data.partition.alpha']}"
    return str(settings.get("data.partition.name", ""))


def usual_length(sides: Sequence[Side]) -> int:
    lengths = Counter(run.rows[-1].round for side in sides for run in side.runs.values())
    return max(lengths, key=lambda rounds: (lengths[rounds], -rounds))


def draw(differences: Mapping[str, Sequence[Any]], path: Path) -> None:
    """A row a claim: what its first side is above its second, a mark for every comparison.

    A short line is what the claim asks for; bars are intervals over seeds.
    """
    counted = {}
    for name, found in differences.items():
        counted[name] = [each for each in found if each.counts]
    rows = {name: found for name, found in counted.items() if found}
    if not rows:
        return
    figure = blank(path, WIDTH, 1.2 + ROW * len(rows))
    axes = figure.subplots()
    for row, found in enumerate(rows.values()):
        axes.plot([found[0].bar] * 2, [row - 0.4, row + 0.4], color="black", lw=1)
        for place, compared in enumerate(found):
            offset = SPREAD * ((place + 0.5) / len(found) - 0.5)
            _mark(axes, compared, row + offset)
    for outcome, name in NAMES.items():
        axes.plot([], [], "o", ms=4, color=COLOURS[outcome], label=name)
    axes.set_yticks(range(len(rows)), list(rows), fontsize="small")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("difference in smoothed accuracy, points")
    axes.grid(axis="x", alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(NAMES), frameon=False, fontsize="small")
    save(figure, path)


def _mark(axes: Any, compared: Any, height: float) -> None:
    found = compared.difference
    colour = COLOURS[compared.outcome]
    # Hollow: one seed, with the scatter of others.
    alone = compared.alone
    axes.errorbar(
        found.mean,
        height,
        xerr=found.half or 0.0,
        fmt="o",
        ms=4,
        color=colour,
        mfc="white" if alone else colour,
        lw=0.6 if alone else 1.2,
    )
