"""From kept runs to an answer, for `claims.py`.

A *side* is a method as `fedwsq compare` names it; a *setting* is all else that two sides must
share. A claim asks for *pairs* of sides, and a *comparison* is one pair in one setting after as
many rounds as both have: the difference in smoothed accuracy seed by seed, since the sides of a
seed have the same split, clients and start. Its *bar* is how many points the first side must be
above the second: 0, more where a claim says `by`, less where it says `within`.

Over several seeds the difference has Student's 95 % interval. One seed alone has no scatter of its
own and is given that of the kept runs which have several (`Noise`): by far less between codes of
one method than between methods. A comparison is for the claim, or against it, where the interval
leaves the bar out.

An example. FedWS is 6.7 points above FedAvg, seeds 0 to 2 by 8.3, 5.7 and 5.9: 6.7 +- 3.6. The bar
of "standardization helps" is 0, so this comparison is for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

from fedwsq.report.estimate import Estimate, estimate, quantile
from kept import Percents, Side, percents, setting_words

LONGER = 2  # times the rounds of a comparison of more seeds
Outcome = Literal["holds", "against", "undecided"]
Settings: TypeAlias = Mapping[tuple[str, ...], Mapping[str, Side]]


class Verdict(StrEnum):
    """The answer to a claim, the good ones first."""

    HOLDS = "holds"
    SO_FAR = "holds as far as run"
    IN_PART = "holds in part"
    UNDECIDED = "undecided"
    NOT_HERE = "does not hold here"
    NOT_RUN = "not run yet"
    UNTESTABLE = "not testable here"


class Said(NamedTuple):
    """An answer with its reason."""

    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        return f"{self.verdict} ({self.why})" if self.why else str(self.verdict)


# What one seed may be off by.


@dataclass(frozen=True)
class Noise:
    """How the difference of two sides scatters over seeds: what is left of accuracies when a
    part for the side and a part for the seed are taken out."""

    squares: float
    freedom: int

    @property
    def half(self) -> float:
        """Of the 95 % interval of a difference of one seed."""
        return quantile(self.freedom) * math.sqrt(2 * self.squares / self.freedom)


class Kind(NamedTuple):
    """What scatters alike: differences of one network, of one method's codes or of methods."""

    data: str
    model: str
    codes: bool


def noises(settings: Settings) -> dict[Kind, Noise]:
    """From all settings in which several sides have several seeds in common."""
    found: dict[Kind, Noise] = {}
    for sides in settings.values():
        several = [side for side in sides.values() if len(side.runs) > 1]
        methods: dict[tuple[str, ...], list[Side]] = {}
        for side in several:
            methods.setdefault(method(side), []).append(side)
        tables = [(True, group) for group in methods.values()]
        tables.append((False, [group[0] for group in methods.values()]))
        for codes, group in tables:
            if len(group) > 1:
                kind = kind_of(group[0], codes)
                before = found.get(kind, Noise(0.0, 0))
                more = residual(group)
                found[kind] = Noise(before.squares + more.squares, before.freedom + more.freedom)
    return {kind: each for kind, each in found.items() if each.freedom}


def kind_of(side: Side, codes: bool) -> Kind:
    return Kind(str(side.settings["data.name"]), str(side.settings["model.name"]), codes)


def method(side: Side) -> tuple[str, ...]:
    """A side without its code."""
    wanted = ("algorithm.", "model.standardize.", "training.decay_on")
    return tuple(f"{key} {side.settings[key]}" for key in side.settings if key.startswith(wanted))


def residual(sides: Sequence[Side]) -> Noise:
    """Of a table of sides by seeds: squares of what neither explains, after as many rounds as
    all have."""
    seeds = sorted(set.intersection(*(set(side.runs) for side in sides)))
    if len(seeds) < 2:
        return Noise(0.0, 0)
    rounds = min(side.runs[seed].rows[-1].round for side in sides for seed in seeds)
    rows = []
    for side in sides:
        by_seed = percents(side.after(rounds)).by_seed
        rows.append([by_seed[seed] for seed in seeds])
    count = len(rows) * len(seeds)
    middle = sum(map(sum, rows)) / count
    of_seeds = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    squares = 0.0
    for row in rows:
        of_side = sum(row) / len(row)
        for value, of_seed in zip(row, of_seeds, strict=True):
            squares += (value - of_side - of_seed + middle) ** 2
    return Noise(squares, (len(rows) - 1) * (len(seeds) - 1))


# Comparisons.


@dataclass(frozen=True)
class Compared:
    """Two sides in the same setting after the same number of rounds, of the seeds of both."""

    setting: str
    rounds: int
    every: int  # how many rounds from one evaluation to the next
    names: tuple[str, str]
    left: Percents
    right: Percents
    bar: float  # points that the left must be above the right; below 0: may be below
    noise: Noise | None = None  # for one seed alone
    counts: bool = True  # not where the same pair has a better comparison in the same setting

    @property
    def difference(self) -> Estimate:
        left = self.left.by_seed
        right = self.right.by_seed
        found = estimate([left[seed] - right[seed] for seed in left if seed in right])
        if found is None:
            return Estimate(math.nan, None, 0)
        if found.half is None and self.noise is not None:
            return Estimate(found.mean, self.noise.half, 1)
        return found

    @property
    def outcome(self) -> Outcome:
        found = self.difference
        if found.half is None:
            return "undecided"
        if found.mean - found.half > self.bar:
            return "holds"
        return "against" if found.mean + found.half < self.bar else "undecided"

    @property
    def alone(self) -> bool:
        return self.difference.count == 1


def pairs(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who is held against whom; `bits` of both at once, where a claim names several."""
    meeting = claim.get("pairs") or product(claim.get("better", []), claim.get("than", []))
    found = []
    for left, right in meeting:
        for bits in claim.get("bits", [""]):
            found.append((left.format(bits=bits), right.format(bits=bits)))
    return found


def comparisons(
    claim: Mapping[str, Any], settings: Settings, noise: Mapping[Kind, Noise]
) -> list[Compared]:
    """All that the kept runs have; of each pair, one in a setting counts."""
    found = []
    for sides in settings.values():
        for names in pairs(claim):
            left, right = (sides.get(name) for name in names)
            if left is not None and right is not None and meant(claim, left):
                found += _compared(claim, names, left, right, noise)
    # What has most seeds counts, then what was evaluated most often, then what ran longest.
    found.sort(key=lambda each: (-each.difference.count, each.every, -each.rounds))
    seen = set()
    told = []
    for each in found:
        place = (each.setting, each.names)
        told.append(replace(each, counts=place not in seen))
        seen.add(place)
    return told


def _compared(
    claim: Mapping[str, Any],
    names: tuple[str, str],
    left: Side,
    right: Side,
    noise: Mapping[Kind, Noise],
) -> list[Compared]:
    bar = claim.get("by", 0.0) - claim.get("within", 0.0)
    kind = kind_of(left, codes=method(left) == method(right))
    every = int(str(left.settings["eval_every"]))
    setting = setting_words({**left.settings, "eval_every": 1})
    found = []
    for rounds in lengths(left, right):
        one, other = left.after(rounds), right.after(rounds)
        seeds = sorted(one.keys() & other.keys())
        mine = percents({seed: one[seed] for seed in seeds})
        theirs = percents({seed: other[seed] for seed in seeds})
        made = Compared(setting, rounds, every, names, mine, theirs, bar, noise.get(kind))
        found.append(made)
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


# Answers.


def verdict(claim: Mapping[str, Any], found: Sequence[Compared]) -> Said:
    """It holds where every pair that it asks for was run, with several seeds, and is for it."""
    if "untestable" in claim:
        return Said(Verdict.UNTESTABLE, claim["untestable"])
    counted = [compared for compared in found if compared.counts]
    if not counted:
        return Said(Verdict.NOT_RUN)
    outcomes = [compared.outcome for compared in counted]
    holds = outcomes.count("holds")
    against = outcomes.count("against")
    alone = sum(compared.alone for compared in counted)
    asked = set(pairs(claim))
    missing = len(asked - {compared.names for compared in counted})
    why = f"{holds} of {len(outcomes)} comparisons for it, {against} against it"
    if alone:
        why += f"; {alone} of one seed"
    if missing:
        why += f"; {missing} of {len(asked)} pairs not run"
    if holds == len(outcomes):
        return Said(Verdict.SO_FAR if alone or missing else Verdict.HOLDS, why)
    if holds:
        return Said(Verdict.IN_PART, why)
    return Said(Verdict.NOT_HERE if against else Verdict.UNDECIDED, why)
