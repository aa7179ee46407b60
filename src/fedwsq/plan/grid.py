"""Grids: many plans at once, one for every combination of the settings that vary.

    config = "cifar10-resnet8"       # where every cell starts from
    settings = { rounds = 100 }      # of every cell

    [each]                           # the first varies slowest
    seed = [0, 1, 2]
    "data.partition.alpha" = [0.1, 0.6]

    [[cases]]                        # settings that go together
    method = "fedavg"
    [[cases]]
    method = "fedwsq"
    "uplink.bits" = 1

In place of cases, `table = "paper-table-1"` takes the rows and columns of a published table;
`[configs]` then says which of its configs to take, and what stands for them.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any, NamedTuple, TypeAlias

from fedwsq.core.checked import fits
from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.plan.build import make_plan
from fedwsq.plan.dump import plan_settings
from fedwsq.plan.paths import PLACES
from fedwsq.plan.published import Heading, published_table
from fedwsq.plan.read import Settings, dotted, parse_override, read_config, read_toml, shipped
from fedwsq.plan.settings import Plan

KEYS: dict[str, Any] = {
    "config": str,
    "settings": dict,
    "each": dict,
    "cases": list[dict],  # type: ignore[type-arg]
    "table": str,
    "configs": dict[str, str],
}
MAX_CELLS = 10_000  # a run each: nobody waits for so many
WORDS = {
    "config": "a file or a name",
    "settings": "a table of settings",
    "each": "a table of lists",
    "cases": "a list of tables",
    "table": "a file or a name",
    "configs": "a table of files or names",
}
SIGNS = ("each", "cases", "table")  # a file with one of these is a grid, not a config
BITS = ("uplink.bits", "downlink.bits")
UNSAFE = re.compile(r"[^A-Za-z0-9.+]+")  # what the name of a folder is better without
# What may differ between a plan and a run directory that is its own.
NOT_IDENTITY = ("rounds", "checkpoint_every", *PLACES)


class Cell(NamedTuple):
    """One run of a grid."""

    name: str
    plan: Plan

    def is_run_of(self, found: Plan) -> bool:
        """Whether a run directory with this plan is this cell's.

        How long it is and where files lie may differ, and what `auto` came to.
        """
        differs = list(NOT_IDENTITY)
        if self.plan.training.precision == "auto":
            differs.append("training.precision")
        return _without(differs, self.plan) == _without(differs, found)


class Choice(NamedTuple):
    """One step along an axis: a part of a cell's name, and settings by dotted name."""

    label: str
    settings: Settings


Axis: TypeAlias = tuple[Choice, ...]


@dataclass(frozen=True)
class Grid:
    """Axes by name; a cell takes one choice of each."""

    config: str
    settings: Settings = field(default_factory=dict)
    axes: Mapping[str, Axis] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)  # what stands for a config; {}: itself

    def varied(self, words: Iterable[str]) -> "Grid":
        """With `key=value,value` words on top: an axis of that name is replaced."""
        axes = dict(self.axes)
        settings = dict(self.settings)
        for word in words:
            key, values = parse_values(word)
            if len(values) == 1 and key not in axes:
                settings[key] = values[0]
            else:
                axes[key] = _axis(key, values)
        return replace(self, axes=axes, settings=settings)

    def cells(self) -> list[Cell]:
        """All cells, every one of them checked; those that come to the same plan are one."""
        count = math.prod(map(len, self.axes.values()))
        if count > MAX_CELLS:
            raise ConfigError(f"the grid has {count:,} cells, at most {MAX_CELLS:,} are run")
        found: dict[str, Cell] = {}
        for choices in itertools.product(*self.axes.values()):
            settings = dict(self.settings)
            for choice in choices:
                settings |= choice.settings
            config = settings.pop("config", self.config)
            if not isinstance(config, str):
                raise ConfigError(f"config is {brief(config)}, must be a file or a name")
            if self.configs and config not in self.configs:
                continue
            cell = self._cell(choices, self.configs.get(config, config), settings)
            first = found.setdefault(repr(_without(NOT_IDENTITY, cell.plan)), cell)
            if first.plan.rounds != cell.plan.rounds:
                raise ConfigError(
                    f"{first.name} and {cell.name} differ only in rounds, {first.plan.rounds} and "
                    f"{cell.plan.rounds}: the longer run holds the shorter one; keep that"
                )
        if not found:
            raise ConfigError("the grid has no cells; give an axis a value, or a config its place")
        return _named(found.values())

    def _cell(self, choices: Sequence[Choice], config: str, settings: Settings) -> Cell:
        name = "_".join(filter(None, (choice.label for choice in choices)))
        try:
            base = read_config(config)
            left = _that_apply(base, settings)
            plan = make_plan(base, left)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}" if name else str(error)) from None
        kept = [choice.label for choice in choices if not choice.settings.keys().isdisjoint(left)]
        return Cell("_".join(filter(None, kept)), plan)


def read_grid(words: Sequence[str]) -> Grid:
    """`GRID KEY=VALUES ...` or `[CONFIG] KEY=VALUES ...`, as on a command line."""
    name = "quickstart"
    if words and "=" not in words[0]:
        name, *words = words
    grids = shipped("grids")
    if name not in grids and not Path(name).is_file():
        return Grid(name).varied(words)
    found = read_toml(name, grids, "grid")
    if not any(key in found for key in SIGNS):
        return Grid(name).varied(words)  # a config in a file
    return _from_toml(found, name).varied(words)


def parse_values(word: str) -> tuple[str, list[Any]]:
    """`uplink.bits=1,4` -> ("uplink.bits", [1, 4]); values are TOML or plain words."""
    key, equals, text = word.partition("=")
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):
        # Plain words: most shells would take their quotes away.
        values = [parse_override(f"{key}={each}")[1] for each in text.split(",")]
    if not equals or not key.strip() or not values or "" in values:
        raise ConfigError(
            f"{word!r} names no values; write key=value,value, for example seed=0,1,2"
        )
    return key.strip(), values


def _from_toml(found: Settings, name: str) -> Grid:
    for key in found:
        if key not in KEYS:
            offer = f"{', '.join(KEYS)}{did_you_mean(key, KEYS)}"
            raise ConfigError(f"grid {name}: unknown key {key}; a grid has {offer}")
        if not fits(KEYS[key], found[key]):
            raise ConfigError(f"grid {name}: {key} is {brief(found[key])}, must be {WORDS[key]}")
    settings = dotted(found.get("settings", {}))
    axes: dict[str, Axis] = {}
    for key, values in found.get("each", {}).items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"grid {name}: each.{key} is {values!r}, must be a list of values")
        axes[key] = _axis(key, values)
    if "table" in found:
        table = published_table(found["table"])
        settings = {**table.settings, **settings}
        axes["row"] = tuple(map(_from_heading, table.rows))
        axes["column"] = tuple(map(_from_heading, table.columns))
    if "cases" in found:
        if not found["cases"]:
            raise ConfigError(f"grid {name}: cases has none of them")
        axes["case"] = tuple(_from_case(dict(case)) for case in found["cases"])
    config = settings.pop("config", found.get("config", "quickstart"))
    return Grid(config, settings, axes, found.get("configs", {}))


def _from_heading(heading: Heading) -> Choice:
    return Choice(_safe(" ".join(heading.label)), heading.settings)


def _from_case(settings: Settings) -> Choice:
    """A case may have a `label`; else its settings are its name."""
    label = settings.pop("label", None)
    if label is None:
        label = " ".join(_said(key, value) for key, value in settings.items())
    return Choice(_safe(str(label)), settings)


def _axis(key: str, values: Sequence[Any]) -> Axis:
    # One value tells no cell from another.
    several = len(values) > 1
    return tuple(Choice(_safe(_said(key, x)) if several else "", {key: x}) for x in values)


def _said(key: str, value: object) -> str:
    """`bits 4`; a method, a codec or a split speaks for itself."""
    if isinstance(value, Mapping):
        return " ".join(str(each) for each in value.values())
    if isinstance(value, str):
        return Path(value).stem if key == "config" else value
    return f"{key.rpartition('.')[2]} {value}"


def _safe(text: str) -> str:
    return UNSAFE.sub("-", text).strip("-")


def _named(cells: Iterable[Cell]) -> list[Cell]:
    """Cells with a name of their own each: of those alike, all but the first get a number."""
    counts: dict[str, int] = {}
    named = []
    for cell in cells:
        name = cell.name or "cell"
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > 1:
            name = f"{name}_{counts[name]}"
        named.append(cell._replace(name=name))
    return named


def _that_apply(base: Settings, settings: Settings) -> Settings:
    """The settings of a cell without bits for a codec that has no choice of them.

    So `method=fedavg,fedwsq uplink.bits=1,4` is three cells: float32 has 32 bits and no others.
    """
    left = {key: x for key, x in settings.items() if key not in BITS}
    if left == settings:
        return settings
    try:
        plan = make_plan(base, left)
    except ConfigError:
        return settings  # they need the bits: secure sums have one bit, not the usual four
    for key, link in zip(BITS, (plan.uplink, plan.downlink), strict=True):
        if key in settings and link.codec.rates.only is None:
            left[key] = settings[key]
    return left


def _without(keys: Iterable[str], plan: Plan) -> Settings:
    found = dotted(plan_settings(plan))
    for key in keys:
        found.pop(key, None)
    return found
