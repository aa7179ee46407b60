"""Runs that differ in nothing but their seed, and short names that tell the groups apart."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

from fedwsq.plan import METHODS, PLACES, make_plan, plan_settings
from fedwsq.plan.read import Settings, dotted
from fedwsq.runs.reading import Reading

# What may differ within a group. Precision changes weights in their last bits: it is flagged.
WITHIN = ("seed", "checkpoint_every", "training.precision", *PLACES)
FLOAT32 = "float32"
Describe: TypeAlias = Callable[[Settings], str]


@dataclass(frozen=True)
class Group:
    """The same settings with several seeds."""

    label: str  # may hold whatever a config says: to be escaped where it is shown
    settings: Settings  # those that all runs of the group share
    runs: tuple[Reading, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Each once, in ascending order."""
        return tuple(sorted({run.seed for run in self.runs}))


def group_runs(runs: Iterable[Reading], describe: Describe | None = None) -> list[Group]:
    """Groups in the order of their first runs. A run whose settings are lost has its own.

    `describe` says what settings are called, their method by default; what tells groups of one
    name apart is added to it.
    """
    found: dict[object, list[Reading]] = {}
    for run in runs:
        key: object = repr(sorted(shared_settings(run).items()))
        if not run.settings:
            key = run.folder
        found.setdefault(key, []).append(run)
    members = list(found.values())
    labels = _labels([shared_settings(each[0]) for each in members], describe or describe_method)
    groups = []
    for label, each in zip(labels, members, strict=True):
        ordered = sorted(each, key=lambda run: run.seed)
        settings = shared_settings(ordered[0])
        groups.append(Group(label or each[0].name, settings, tuple(ordered)))
    return groups


def one_a_seed(runs: Iterable[Reading]) -> tuple[list[Reading], list[str]]:
    """Without runs that repeat another one, settings and seed alike; and what is said of those.

    Counted as two, they would make an interval over seeds look narrower than it is.
    """
    kept: dict[object, Reading] = {}
    said = []
    for run in runs:
        key: object = repr((sorted(shared_settings(run).items()), run.seed))
        if not run.settings:
            key = run.folder
        first = kept.setdefault(key, run)
        if first is not run:
            said.append(f"{run.name} repeats {first.name}, with the same settings and seed")
    return list(kept.values()), said


def shared_settings(run: Reading) -> Settings:
    """All settings but those that may differ within a group."""
    return {key: value for key, value in run.settings.items() if key not in WITHIN}


def differing(settings: Sequence[Settings]) -> list[str]:
    """The keys in which these settings differ, in the order of a plan."""
    keys = dict.fromkeys(key for each in settings for key in each)
    # By repr: a value may be a list, and 1 is not True.
    return [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]


def _labels(groups: Sequence[Settings], describe: Describe) -> list[str]:
    """The name of each, and what tells it from others of the same name."""
    bases = [describe(settings) for settings in groups]
    labels = []
    for base, settings in zip(bases, groups, strict=True):
        alike = [other for name, other in zip(bases, groups, strict=True) if name == base]
        keys = [key for key in differing(alike) if key in settings]
        labels.append(", ".join([base, *(_said(key, settings, keys) for key in keys)]))
    return labels


def _said(key: str, settings: Settings, others: Sequence[str]) -> str:
    """`alpha=0.1`; the whole key where another one ends alike, the bare name of an entry."""
    leaf = key.rpartition(".")[2]
    if leaf == "name":
        return str(settings[key])
    alike = [other for other in others if other.rpartition(".")[2] == leaf]
    return f"{leaf if len(alike) == 1 else key}={settings[key]}"


# A method by its name, from settings that no longer say it.


class Signature(NamedTuple):
    """What makes a method the one it is, whatever the numbers in its settings."""

    algorithm: str
    server: str
    standardize: str
    codec: str
    by_error: bool
    secure: bool
    decay_on: str


def signature(settings: Settings) -> Signature:
    return Signature(
        str(settings.get("algorithm.name", "")),
        str(settings.get("algorithm.server.name", "")),
        str(settings.get("model.standardize.name", "none")),
        str(settings.get("uplink.codec.name", FLOAT32)),
        settings.get("aggregation") == "error",
        settings.get("uplink.secure") is True,
        str(settings.get("training.decay_on", "clients")),
    )


def describe_method(settings: Settings) -> str:
    """`fedwsq 4 bits`, or the parts of what has no name: `fedacg + ws, eden 1 bits`."""
    if not settings:
        return ""
    found = signature(settings)
    down = str(settings.get("downlink.codec.name", FLOAT32))
    # A method that codes its broadcasts is itself only where they are; any other is with both.
    name = _published().get((found, down)) or _published().get((found, FLOAT32))
    if name is None:
        name = found.algorithm
        if found.standardize != "none":
            name += f" + {found.standardize}"
        if found.decay_on != "clients":
            name += f", decay on {found.decay_on}"
        if found.codec != FLOAT32:
            name += f", {found.codec}"
    if found.codec == FLOAT32:
        return name
    return f"{name} {describe_bits(settings)}"


def describe_bits(settings: Settings, link: str = "uplink") -> str:
    """`4 bits`, or the name of the policy that grants them."""
    policy = settings.get(f"{link}.bits.name")
    if policy != "fixed":
        return str(policy)
    bits = settings.get(f"{link}.bits.bits")
    return f"{bits:g} bits" if isinstance(bits, int | float) else f"{bits} bits"


@cache
def _published() -> dict[tuple[Signature, str], str]:
    """Methods by what makes them, and by the code of their broadcasts."""
    found = {}
    for name in METHODS:
        settings = dotted(plan_settings(make_plan({"method": name})))
        found[signature(settings), str(settings["downlink.codec.name"])] = name
    return found
