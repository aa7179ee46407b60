"""The kept runs by setting and by side, as `claims.py` and `lean.py` compare them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedwsq.plan.read import Settings
from fedwsq.report.compare import smoothed, total_bytes
from fedwsq.report.estimate import Estimate, estimate
from fedwsq.report.groups import WITHIN, describe_bits, describe_method, differing
from fedwsq.runs.reading import Reading

WATCHED = ("record.rounds",)  # what changes no weight and no figure
# Settings that came later, as runs from before have them without saying so.
SINCE: Mapping[str, object] = {
    "training.decay_on": "clients",
    "uplink.spread": "elements",
    "downlink.spread": "elements",
}
# What two sides must share to be compared. Not their length: an earlier round of a longer run is
# that round of a shorter one, bit for bit, as long as no schedule depends on the end.
SAME = (
    # What is smoothed depends on the rounds that were evaluated: who took part in them is in it.
    "eval_every",
    "data.name",
    "data.clients",
    "data.partition.name",
    "data.partition.alpha",
    "clients_per_round",
    "model.name",
    "training.epochs",
    "training.batches_per_epoch",
    "training.batch_size",
    "training.schedule",
    "training.lr_decay",
    "training.weight_decay",
    "training.lr",
    "downlink.codec.name",
    "downlink.bits.bits",
)
# Settings that make another side of the same method, where they are not the usual ones.
OTHERWISE: Mapping[str, tuple[object, str]] = {
    "model.standardize.rho": (0.001, "rho"),
    "uplink.select": ("published", "select"),
    "uplink.counts": (False, "counts"),
    "uplink.error_feedback": (False, "error feedback"),
    "uplink.codec.dequantize": ("shared", "dequantize"),
    "uplink.codec.levels": ("paper", "levels"),
    "uplink.codec.scale_init": ("calibrate", "start"),
    "algorithm.exchange": ("psp", "exchange"),
    "training.clip_norm": (10.0, "clip"),
}
OFTEN = (1, 3)  # how often runs are usually evaluated


def side_name(settings: Settings) -> str:
    """`fedws`, `fedwsq 4 bits`, `fedws, rho 0.1`: a method and what is unusual about it."""
    name = describe_method(settings)
    for key, (usual, word) in OTHERWISE.items():
        value = settings.get(key, usual)
        if value != usual:
            name += f", {word} {value}"
    return name


def both_ways(settings: Settings) -> str:
    """The side with its broadcasts: `fedwsq-lean growing, down ecq growing since the start`."""
    name = describe_method(settings)
    codec = settings.get("downlink.codec.name", "float32")
    if codec != "float32":
        name += f", down {codec} {describe_bits(settings, 'downlink')}"
    if settings.get("downlink.mode") == "start":
        name += " since the start"
    return name


def setting_words(settings: Settings) -> str:
    """`cifar10, alpha 0.3, 5 of 100 clients, resnet8`; a learning rate only if it is not 0.1."""
    split = str(settings.get("data.partition.name", ""))
    if "data.partition.alpha" in settings:
        split = f"alpha {settings['data.partition.alpha']}"
    asked = f"{settings.get('clients_per_round')} of {settings.get('data.clients')} clients"
    words = [str(settings.get("data.name")), split, asked, str(settings.get("model.name"))]
    if settings.get("training.epochs") != 5:
        words.append(f"{settings.get('training.epochs')} epochs")
    if settings.get("training.lr") != 0.1:
        words.append(f"lr {settings.get('training.lr')}")
    if settings.get("eval_every") not in OFTEN:
        words.append(f"evaluated every {settings.get('eval_every')} rounds")
    return ", ".join(words)


def as_of(run: Reading, rounds: int) -> Reading:
    """The run as it was after so many rounds; what was recorded of it is no matter.

    Neither is a bound that no update met: without it the weights would be the same.
    """
    rows = tuple(row for row in run.rows if row.round <= rounds)
    no_matter = list(WATCHED)
    if not any(row.clipped for row in rows):
        no_matter.append("bounds.norm")
    settings = {key: value for key, value in run.settings.items() if key not in no_matter}
    for key, usual in SINCE.items():
        settings.setdefault(key, usual)
    return replace(run, rows=rows, settings={**settings, "rounds": rounds})


def megabytes(run: Reading) -> float:
    return sum(map(total_bytes, run.rows)) / 1e6


@dataclass(frozen=True)
class Side:
    """One method in one setting: for each seed its longest run."""

    settings: Settings
    runs: Mapping[int, Reading]

    def after(self, rounds: int) -> dict[int, Reading]:
        """The runs that got so far, as they were then."""
        found = {}
        for seed, run in self.runs.items():
            if run.rows[-1].round >= rounds:
                found[seed] = as_of(run, rounds)
        return found


@dataclass(frozen=True)
class Percents:
    """Smoothed accuracies of some seeds in percent, and what they took."""

    by_seed: Mapping[int, float]
    megabytes: float
    up_megabytes: float

    @property
    def mean(self) -> Estimate | None:
        return estimate(list(self.by_seed.values()))


def percents(runs: Mapping[int, Reading]) -> Percents:
    found = {seed: smoothed(run) for seed, run in runs.items()}
    count = max(1, len(runs))
    up = sum(row.uplink_bytes for run in runs.values() for row in run.rows)
    return Percents(
        {seed: 100 * value for seed, value in found.items() if value is not None},
        sum(map(megabytes, runs.values())) / count,
        up / count / 1e6,
    )


def by_setting(runs: Sequence[Reading]) -> dict[tuple[str, ...], dict[str, Side]]:
    """Sides by what they have in common, then by name."""
    found: dict[tuple[str, ...], dict[str, list[Reading]]] = {}
    for run in runs:
        if run.state != "finished":
            continue
        key = [str(run.settings.get(name, "")) for name in SAME]
        if run.settings.get("training.schedule") == "published":
            key.append(str(run.rounds))
        found.setdefault(tuple(key), {}).setdefault(side_name(run.settings), []).append(run)

    sides: dict[tuple[str, ...], dict[str, Side]] = {}
    for same, names in found.items():
        sides[same] = {}
        for name, alike in names.items():
            sides[same] |= _told_apart(name, alike)
    return sides


def _told_apart(name: str, runs: Sequence[Reading]) -> dict[str, Side]:
    """Runs of one name whose settings differ all the same are sides of their own.

    The name is the largest group's; the others say what is another way with them.
    """
    plain = [as_of(run, 0).settings for run in runs]
    keys = [key for key in differing(plain) if key not in ("seed", *WITHIN)]
    groups: dict[tuple[str, ...], dict[int, Reading]] = {}
    for run, settings in zip(runs, plain, strict=True):
        seeds = groups.setdefault(tuple(repr(settings.get(key)) for key in keys), {})
        before = seeds.get(run.seed)
        if before is None or len(before.rows) < len(run.rows):
            seeds[run.seed] = run

    sides = {}
    for words, seeds in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        said = [f"{key} {word}" for key, word in zip(keys, words, strict=True)]
        label = ", ".join([name, *said]) if sides else name
        sides[label] = Side(seeds[min(seeds)].settings, seeds)
    return sides


def shown(found: Estimate | None) -> str:
    if found is None or math.isnan(found.mean):
        return ""
    if found.half is None:
        return f"{found.mean:.2f} (one seed)"
    if found.count == 1:
        return f"{found.mean:.2f} (one seed; seeds scatter by {found.half:.1f})"
    return f"{found.mean:.2f} ± {found.half:.2f} ({found.count} seeds)"


@dataclass(frozen=True)
class Factor:
    """A geometric mean over seeds, as factors scatter in ratios; no interval with one seed."""

    middle: float
    low: float | None
    high: float | None
    count: int


def factor(values: Sequence[float]) -> Factor | None:
    found = estimate([math.log(value) for value in values])
    if found is None:
        return None
    middle = math.exp(found.mean)
    if found.half is None:
        return Factor(middle, None, None, 1)
    low = math.exp(found.mean - found.half)
    high = math.exp(found.mean + found.half)
    return Factor(middle, low, high, found.count)


def shown_factor(values: Sequence[float]) -> str:
    found = factor(values)
    if found is None:
        return ""
    if found.low is None:
        return f"{found.middle:.1f} (one seed)"
    return f"{found.middle:.1f} ({found.low:.1f} to {found.high:.1f}, {found.count} seeds)"
