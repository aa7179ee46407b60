"""The paper's claims, answered from the runs that are kept.

    python benchmarks/claims.py             the page, printed
    python benchmarks/claims.py --write     RESULTS.md, its figures, the README's picture and tables

The page has first bytes to accuracy (`lean.py`) and all answers at a glance (`overview.py`), with
figures beside it; then every claim of `claims.toml`: its sentence and the two sides of its
comparison, each a method as `fedwsq compare` names it.

Runs are compared where they share data, split, participation, model, local training and
broadcasts, after as many rounds as both have, by their smoothed accuracy, seed by seed. Over
several seeds a comparison is for the claim, or against it, where the 95 % interval of the
difference leaves 0 out (or the points that the claim allows); with one seed where it is more than
two points. A claim holds if all its comparisons are for it, in part if some are, and does not hold
here if none is and at least one is against it. Some claims are not about accuracy (`measured.py`).
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lean
import overview
import picture
import readme
from evidence import unpacked
from fedwsq.report.estimate import Estimate, estimate
from fedwsq.runs.reading import Reading
from kept import Percents, Side, by_setting, percents, setting_words, shown
from measured import MEASURES
from script import parser

CLAIMS = Path(__file__).with_name("claims.toml")
ROOT = CLAIMS.parent.parent
PAGE = "benchmarks/RESULTS.md"
README = "README.md"
PICTURE = "docs/curves.png"
LONGER = 2  # times the rounds of a comparison of more seeds
ALONE = 2.0  # points that one seed may be off by: below, it takes several to tell
PARTS = {"claim": "The paper's claims", "question": "Questions of our own"}
Outcome = Literal["holds", "against", "undecided"]


@dataclass(frozen=True)
class Compared:
    """Two sides in the same setting after the same number of rounds, of the seeds of both."""

    setting: str
    names: tuple[str, str]
    left: Percents
    right: Percents
    bar: float  # points that the left must be above the right; below 0: may be below

    @property
    def difference(self) -> Estimate:
        """Seed by seed: both sides of a seed have the same split, clients and start."""
        left = self.left.by_seed
        right = self.right.by_seed
        found = estimate([left[seed] - right[seed] for seed in left if seed in right])
        return found or Estimate(math.nan, None, 0)

    @property
    def outcome(self) -> Outcome:
        found = self.difference
        half = ALONE if found.half is None else found.half
        if found.mean - half > self.bar:
            return "holds"
        return "against" if found.mean + half < self.bar else "undecided"


def comparisons(
    claim: Mapping[str, Any], settings: Mapping[tuple[str, ...], Mapping[str, Side]]
) -> list[Compared]:
    found = []
    bar = claim.get("by", 0.0) - claim.get("within", 0.0)
    for sides in settings.values():
        for names in pairs(claim):
            left, right = (sides.get(name) for name in names)
            if left is None or right is None or not meant(claim, left):
                continue
            for rounds in lengths(left, right):
                one, other = left.after(rounds), right.after(rounds)
                seeds = one.keys() & other.keys()
                setting = f"{setting_words(left.settings)}, {rounds} rounds"
                mine = percents({seed: one[seed] for seed in sorted(seeds)})
                theirs = percents({seed: other[seed] for seed in sorted(seeds)})
                found.append(Compared(setting, names, mine, theirs, bar))
    return found


def lengths(left: Side, right: Side) -> list[int]:
    """After how many rounds both can be compared: where some seed of one of them ends.

    The longer, the fewer seeds: what they add is told from twice as many rounds on.
    """
    ends = set()
    for seed in left.runs.keys() & right.runs.keys():
        ends.add(min(left.runs[seed].rows[-1].round, right.runs[seed].rows[-1].round))
    told: list[int] = []
    for rounds in sorted(ends):
        if not told or rounds >= LONGER * told[-1]:
            told.append(rounds)
    return told


def meant(claim: Mapping[str, Any], side: Side) -> bool:
    """Whether a claim is about this setting: `only` has the values it is about."""
    wanted = claim.get("only", {})
    return all(side.settings.get(key) in values for key, values in wanted.items())


def pairs(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who is held against whom; `bits` of both at once, where a claim names several."""
    meeting = claim.get("pairs") or product(claim.get("better", []), claim.get("than", []))
    found = []
    for left, right in meeting:
        for bits in claim.get("bits", [""]):
            found.append((left.format(bits=bits), right.format(bits=bits)))
    return found


def verdict(claim: Mapping[str, Any], found: Sequence[Compared]) -> str:
    if "untestable" in claim:
        return f"not testable here: {claim['untestable']}"
    outcomes = [compared.outcome for compared in found]
    if not outcomes:
        return "not run yet"
    holds = outcomes.count("holds")
    against = outcomes.count("against")
    alone = sum(compared.difference.half is None for compared in found)
    counted = f"{holds} of {len(outcomes)} comparisons for it, {against} against it"
    if alone:
        counted += f"; {alone} of one seed"
    if holds == len(outcomes):
        return f"holds ({counted})"
    if holds:
        return f"holds in part ({counted})"
    if against:
        return f"does not hold here ({counted})"
    return f"undecided ({counted}: within noise)"


def table(found: Sequence[Compared]) -> str:
    if not found:
        return ""
    head = ("setting", "accuracy", "against", "difference", "MB up", "MB, both ways")
    text = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    for each in found:
        cells = [
            each.setting,
            f"{each.names[0]}: {shown(each.left.mean)}",
            f"{each.names[1]}: {shown(each.right.mean)}",
            shown(each.difference),
            f"{each.left.up_megabytes:.1f} and {each.right.up_megabytes:.1f}",
            f"{each.left.megabytes:.1f} and {each.right.megabytes:.1f}",
        ]
        text += f"| {' | '.join(cells)} |\n"
    return f"\n{text}"


class Answer(NamedTuple):
    """What is said of a claim, and what it rests on."""

    verdict: str
    compared: Sequence[Compared]
    text: str


def answered(
    claim: Mapping[str, Any],
    settings: Mapping[tuple[str, ...], Mapping[str, Side]],
    runs: Sequence[Reading],
) -> Answer:
    if "measure" in claim:
        found = MEASURES[claim["measure"]](runs)
        text = f"\n{found.text}\n" if found.text else ""
        return Answer(found.verdict, [], text)
    compared = comparisons(claim, settings)
    return Answer(verdict(claim, compared), compared, table(compared))


INTRODUCTION = """\
# What holds, and what it costs

Written by `python benchmarks/claims.py --write` from {count} runs in
`benchmarks/evidence`; its help says how a claim is judged. Any run is repeated with `python
benchmarks/evidence.py repeat NAME data.root=DIR`. Accuracies are smoothed ones in percent,
intervals are of 95 % over seeds.
"""


GLANCE = """
## Answers at a glance

![What the first side of each comparison is above the second]({figure})

A mark is one comparison, hollow where there is one seed; the short line is what the claim asks for.
"""

ACCURACIES = """
## Accuracies

Smoothed, in percent, of all methods that can be compared: the same data, clients, model, local
training and broadcasts. The last column is the mean difference, seed by seed: splits and clients
of one seed are alike for all methods, and seeds differ more than methods do.
"""


class Results(NamedTuple):
    """The page, and what its figures show."""

    text: str
    scenes: Sequence[lean.Scene]
    differences: Mapping[str, Sequence[Compared]]
    block: str  # the README's part

    def write(self, root: Path = ROOT) -> None:
        page = root / PAGE
        page.write_text(self.text)
        lean.draw(self.scenes, page.with_name(lean.FIGURE))
        overview.draw(self.differences, page.with_name(overview.FIGURE))
        readme.put(self.block, root / README)
        scene = picture.headline(self.scenes)
        if scene is not None:
            picture.draw(scene, root / PICTURE)


def results(asked: Mapping[str, Sequence[Mapping[str, Any]]], runs: Sequence[Reading]) -> Results:
    settings = by_setting(runs)
    scenes = lean.told(runs)
    answers = {}
    details = ""
    for kind, title in PARTS.items():
        details += f"\n## {title}\n"
        for claim in asked[kind]:
            name = claim["name"]
            answers[name] = answered(claim, settings, runs)
            details += f"\n### {name}\n\n> {claim['sentence']}\n> ({claim['where']})\n\n"
            details += f"**{answers[name].verdict}**\n{answers[name].text}"

    text = INTRODUCTION.format(count=len(runs))
    text += lean.section(scenes)
    text += GLANCE.format(figure=overview.FIGURE)
    text += "\n" + overview.verdicts({name: each.verdict for name, each in answers.items()})
    text += ACCURACIES + overview.accuracies(settings)
    differences = {name: each.compared for name, each in answers.items()}
    said = {claim["name"]: answers[claim["name"]].verdict for claim in asked["claim"]}
    block = readme.block(scenes, settings, said)
    return Results(text + details, scenes, differences, block)


def read_claims() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(CLAIMS.read_text())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="put all of it into its place")
    args = options.parse_args()
    with unpacked() as runs:
        found = results(read_claims(), runs)
    print(found.text)
    if args.write:
        found.write()


if __name__ == "__main__":
    main()
