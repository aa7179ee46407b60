"""The command that repeats a run, from settings that are spelled out to the last default."""

import shlex

import tomli_w

from fedwsq.core.errors import ConfigError
from fedwsq.plan import load_plan, plan_settings
from fedwsq.plan.read import (
    Settings,
    dotted,
    parse_override,
    parse_overrides,
    shipped_configs,
)
from fedwsq.runs.reading import Reading

NAME = ".name"


def repeat_command(run: Reading) -> str:
    """`fedwsq run CONFIG KEY=VALUE ...` with the shipped config that is nearest to the run.

    One that no shipped config leads to is repeated from its own file; "" without settings.
    """
    if not run.settings:
        return ""
    found = []
    for config in shipped_configs():
        words = overrides(config, run.settings)
        if words is not None:
            found.append((len(words), config, words))
    if not found:
        return shlex.join(["fedwsq", "run", str(run.folder / "config.toml")])
    _, config, words = min(found)
    return shlex.join(["fedwsq", "run", config, *words])


def overrides(config: str, wanted: Settings) -> list[str] | None:
    """The words that turn a shipped config into these settings; None if none do."""
    # Such a name would be imported, and nothing that stands in a run directory is to be run.
    if any(":" in str(value) for key, value in wanted.items() if key.endswith(NAME)):
        return None
    goal = _short(wanted)
    given: Settings = {}
    try:
        now = _reached(config, given)
        # Names of entries first: what else there is to set depends on them.
        while names := _names(goal, now):
            given |= names
            try:
                now = _reached(config, given)
            except ConfigError:  # entries that cannot do without settings of their own
                given |= {key: _table(goal, key) for key in names}
                now = _reached(config, given)
        given |= {key: value for key, value in goal.items() if now.get(key) != value}
        words = [f"{key}={_toml(value)}" for key, value in given.items()]
        # The words themselves are tried: only they are what somebody will type.
        reached = _reached(config, parse_overrides(words))
    except ConfigError:
        return None
    return words if reached == goal else None


def _reached(config: str, given: Settings) -> Settings:
    return _short(dotted(plan_settings(load_plan(config, given))))


def _names(goal: Settings, now: Settings) -> Settings:
    """The entries that are still others: {"uplink.codec": "ecq"}."""
    others = [key for key in goal if key.endswith(NAME) and now.get(key) != goal[key]]
    return {key.removesuffix(NAME): goal[key] for key in others}


def _short(settings: Settings) -> Settings:
    """The same with `uplink.bits=4` for a fixed width, as configs and people write it."""
    short = dict(settings)
    for link in ("uplink", "downlink"):
        if short.get(f"{link}.bits.name") == "fixed":
            del short[f"{link}.bits.name"]
            short[f"{link}.bits"] = short.pop(f"{link}.bits.bits", None)
    return short


def _table(settings: Settings, entry: str) -> Settings:
    """An entry with its name and all of its own fields, tables in tables."""
    prefix = f"{entry}."
    table: Settings = {}
    for key, value in settings.items():
        if key.startswith(prefix):
            *path, last = key.removeprefix(prefix).split(".")
            inner = table
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = value
    return table


def _toml(value: object) -> str:
    """A value as one word of a command; words need quotes only where they look like numbers."""
    if isinstance(value, str) and parse_override(f"key={value}")[1] == value:
        return value
    return _quoted(value)


def _quoted(value: object) -> str:
    if isinstance(value, dict):
        fields = [f"{key} = {_quoted(each)}" for key, each in value.items()]
        return f"{{ {', '.join(fields)} }}"
    text = tomli_w.dumps({"value": value}).removeprefix("value = ")
    return " ".join(text.split())  # lists are written over several lines
