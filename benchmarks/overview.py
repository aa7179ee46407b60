"""The first looks at the kept runs, for `claims.py`: answers in a line, accuracies, differences."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwsq.cli.plot import blank, save
from fedwsq.plan.read import Settings
from kept import SAME, Side, percents, setting_words, shown

FIGURE = "differences.png"
WIDTH = 9.0  # inches
ROW = 0.34  # inches that a claim takes in the figure
SPREAD = 0.6  # of a row: what its comparisons have beside each other
COLOURS = {"holds": "#0072b2", "against": "#d55e00", "undecided": "#888888"}
NAMES = {"holds": "for the claim", "against": "against it", "undecided": "within noise"}
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


@dataclass(frozen=True)
class Matrix:
    """Accuracies of one data set and network: methods down, splits across."""

    words: str
    splits: Sequence[str]
    cells: Mapping[str, Mapping[str, str]]

    def text(self) -> str:
        text = f"| method | {' | '.join(self.splits)} |\n|{'---|' * (1 + len(self.splits))}\n"
        for name, row in self.cells.items():
            text += f"| {name} | {' | '.join(row.get(split, '') for split in self.splits)} |\n"
        return text

    def only(self, names: Sequence[str]) -> "Matrix":
        """These methods in this order, as far as they were run."""
        cells = {name: self.cells[name] for name in names if name in self.cells}
        return replace(self, cells=cells)


def matrices(settings: Mapping[tuple[str, ...], Mapping[str, Side]]) -> list[Matrix]:
    """After as many rounds as most runs of the same data set and network have."""
    found = []
    for splits in _scenes(settings):
        sides = [side for each in splits.values() for side in each.values()]
        rounds = _usual_length(sides)
        words = f"{_without_split(sides[0].settings)}, after {rounds} rounds"
        made = Matrix(words, list(splits), _reached(splits, rounds))
        if len(made.cells) > 1:
            found.append(made)
    return found


def accuracies(settings: Mapping[tuple[str, ...], Mapping[str, Side]]) -> str:
    text = ""
    for matrix in matrices(settings):
        text += f"\n**{matrix.words}**\n\n{matrix.text()}"
    return text


def _scenes(
    settings: Mapping[tuple[str, ...], Mapping[str, Side]],
) -> list[dict[str, Mapping[str, Side]]]:
    """Settings that differ in nothing but their split, by the name of that."""
    found: dict[tuple[str, ...], dict[str, Mapping[str, Side]]] = {}
    places = [SAME.index(name) for name in SPLITS]
    for same, sides in settings.items():
        key = tuple(word for place, word in enumerate(same) if place not in places)
        first = next(iter(sides.values()))
        found.setdefault(key, {})[_split(first.settings)] = sides
    # From the most skewed to i.i.d.
    return [dict(sorted(splits.items())) for splits in found.values()]


def _split(settings: Settings) -> str:
    if "data.partition.alpha" in settings:
        return f"alpha {settings['data.partition.alpha']}"
    return str(settings.get("data.partition.name", ""))


def _without_split(settings: Settings) -> str:
    words = setting_words(settings).split(", ")
    return ", ".join(word for word in words if word != _split(settings))


def _usual_length(sides: Sequence[Side]) -> int:
    lengths = Counter(run.rows[-1].round for side in sides for run in side.runs.values())
    return max(lengths, key=lambda rounds: (lengths[rounds], -rounds))


def _reached(splits: Mapping[str, Mapping[str, Side]], rounds: int) -> dict[str, dict[str, str]]:
    """By method and split: accuracy after so many rounds, of those that have as many."""
    found: dict[str, dict[str, str]] = {}
    for split, sides in splits.items():
        for name, side in sorted(sides.items()):
            runs = side.after(rounds)
            if runs:
                found.setdefault(name, {})[split] = shown(percents(runs).mean)
    return found


def draw(differences: Mapping[str, Sequence[Any]], path: Path) -> None:
    """A row a claim: what its first side is above its second, a mark for every comparison.

    A short line is what the claim asks for; bars are intervals over seeds.
    """
    rows = {name: found for name, found in differences.items() if found}
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
    # Hollow: one seed, of which nobody knows how far it is off.
    alone = found.half is None
    axes.errorbar(
        found.mean,
        height,
        xerr=found.half or 0.0,
        fmt="o",
        ms=4,
        color=colour,
        mfc="white" if alone else colour,
        lw=1,
    )
