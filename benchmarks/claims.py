"""The paper's claims, answered from the runs that are kept.

    python benchmarks/claims.py [--write benchmarks/RESULTS.md]

`claims.toml` has every claim with its sentence and the two sides of its comparison; a side is a
method as `fedwsq compare` names it. Runs are compared where they differ in nothing else that
matters (data, split, participation, model, rounds, local training), by their smoothed accuracy at
the end, seed by seed. A comparison holds, or speaks against the claim, where the 95 % interval of
the difference over seeds leaves 0 out; a single seed decides nothing. A claim holds if all its
comparisons do, in part if some do, and does not if none does and at least one speaks against it.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evidence import unpacked
from fedwsq.report.compare import smoothed, total_bytes
from fedwsq.report.estimate import Estimate, estimate
from fedwsq.report.groups import Group, describe_method, group_runs
from fedwsq.runs.reading import Reading
from script import parser, report

CLAIMS = Path(__file__).with_name("claims.toml")
SAME = (
    "data.name",
    "data.clients",
    "data.partition.name",
    "data.partition.alpha",
    "clients_per_round",
    "model.name",
    "rounds",
    "training.epochs",
    "training.lr",
)
SHOWN = {"data.name": "", "data.partition.alpha": "alpha ", "model.name": "", "rounds": "rounds "}
Outcome = Literal["holds", "against", "undecided"]


@dataclass(frozen=True)
class Side:
    """One method in one setting, over its seeds."""

    group: Group

    @property
    def by_seed(self) -> dict[int, float]:
        found = {run.seed: smoothed(run) for run in self.group.runs}
        return {seed: 100 * value for seed, value in found.items() if value is not None}

    @property
    def megabytes(self) -> float:
        runs = self.group.runs
        return sum(total_bytes(row) for run in runs for row in run.rows) / len(runs) / 1e6


@dataclass(frozen=True)
class Compared:
    """Two sides in the same setting."""

    setting: str
    names: tuple[str, str]
    left: Side
    right: Side
    within: float | None  # points that the left may be below; None: it must be above

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
        if found.half is None:
            return "undecided"
        bar = -(self.within or 0.0)
        if found.mean - found.half > bar:
            return "holds"
        return "against" if found.mean + found.half < bar else "undecided"


def groups_by_setting(runs: Sequence[Reading]) -> dict[tuple[str, ...], dict[str, Side]]:
    """Sides by what they have in common, then by method."""
    found: dict[tuple[str, ...], dict[str, Side]] = {}
    for group in group_runs([run for run in runs if run.state == "finished"]):
        key = tuple(str(group.settings.get(name, "")) for name in SAME)
        # Two groups of one method in one setting differ in something else: the first is the plain.
        found.setdefault(key, {}).setdefault(describe_method(group.settings), Side(group))
    return found


def comparisons(
    claim: Mapping[str, Any], settings: Mapping[tuple[str, ...], Mapping[str, Side]]
) -> list[Compared]:
    found = []
    for key, sides in settings.items():
        for left, right in pairs(claim):
            if left in sides and right in sides:
                compared = Compared(
                    _setting(key), (left, right), sides[left], sides[right], claim.get("within")
                )
                found.append(compared)
    return found


def pairs(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who is held against whom; `bits` of both at once, where a claim names several."""
    found = []
    for left in claim.get("better", []):
        for right in claim.get("than", []):
            for bits in claim.get("bits", [""]):
                found.append((left.format(bits=bits), right.format(bits=bits)))
    return found


def _setting(key: Sequence[str]) -> str:
    values = dict(zip(SAME, key, strict=True))
    return ", ".join(f"{said}{values[name]}" for name, said in SHOWN.items() if values[name])


def verdict(claim: Mapping[str, Any], found: Sequence[Compared]) -> str:
    if "untestable" in claim:
        return f"not testable here: {claim['untestable']}"
    outcomes = [compared.outcome for compared in found]
    if not outcomes:
        return "not run yet"
    holds = outcomes.count("holds")
    against = outcomes.count("against")
    counted = f"{holds} of {len(outcomes)} comparisons for it, {against} against it"
    if holds == len(outcomes):
        return f"holds ({counted})"
    if holds:
        return f"holds in part ({counted})"
    if against:
        return f"does not hold here ({counted})"
    return f"undecided ({counted}, the others within noise or of one seed)"


def shown(found: Estimate | None) -> str:
    if found is None:
        return ""
    if found.half is None:
        return f"{found.mean:.2f} (one seed)"
    return f"{found.mean:.2f} ± {found.half:.2f} ({found.count} seeds)"


def table(found: Sequence[Compared]) -> str:
    if not found:
        return ""
    text = "| setting | accuracy | against | difference | MB, both ways |\n|---|---|---|---|---|\n"
    for each in found:
        left = f"{each.names[0]}: {shown(estimate(list(each.left.by_seed.values())))}"
        right = f"{each.names[1]}: {shown(estimate(list(each.right.by_seed.values())))}"
        sizes = f"{each.left.megabytes:.1f} and {each.right.megabytes:.1f}"
        text += f"| {each.setting} | {left} | {right} | {shown(each.difference)} | {sizes} |\n"
    return f"\n{text}"


def results(claims: Sequence[Mapping[str, Any]], runs: Sequence[Reading]) -> str:
    settings = groups_by_setting(runs)
    text = "# What holds of the paper's claims\n\n"
    text += (
        f"Written by `python benchmarks/claims.py --write benchmarks/RESULTS.md` from {len(runs)} "
    )
    text += (
        "runs in `benchmarks/evidence`;\nits help says how a claim is judged. Any run is repeated "
    )
    text += (
        "with `python benchmarks/evidence.py repeat NAME\ndata.root=DIR`. Accuracies are smoothed "
    )
    text += "ones in percent, intervals are of 95 % over seeds.\n"
    for claim in claims:
        found = comparisons(claim, settings)
        text += f"\n## {claim['name']}\n\n> {claim['sentence']}\n> ({claim['where']})\n\n"
        text += f"**{verdict(claim, found)}**\n{table(found)}"
    return text


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", type=Path)
    args = options.parse_args()
    with unpacked() as runs:
        report(results(tomllib.loads(CLAIMS.read_text())["claim"], runs), args.write)


if __name__ == "__main__":
    main()
