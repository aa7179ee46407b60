"""TOML <-> the frozen dataclasses of a plan, with overrides and errors that help.

A table with a `name` chooses an entry of a table in the code (`algorithm`, `uplink.codec`, ...); its other keys are
that entry's fields. The bare name will do where the defaults are wanted, and `"my_lab.fedx:FedX"` reaches code outside
the package.
"""

import copy
import difflib
import hashlib
import importlib
import inspect
import math
import os
import sys
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w

from fedwsq.algorithms import ALGORITHMS, SERVER_OPTIMIZERS, Algorithm, ServerOptimizer
from fedwsq.codecs import BITS, CODECS, BitPolicy, Codec
from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.core.recipe import Recipe
from fedwsq.data import DATASETS, PARTITIONS
from fedwsq.evaluation import METRICS, Metric
from fedwsq.models import MODELS, STANDARDIZATIONS, Standardization
from fedwsq.plan.methods import METHODS, PLAIN
from fedwsq.plan.settings import BuildModel, LoadData, Plan, SplitData
from fedwsq.training import CRITERIA, OPTIMIZERS, Criterion, Optimizer
from fedwsq.wire import Link
from fedwsq.wire.channels import CHANNELS, Channels
from fedwsq.wire.link import only_rate

TABLES: dict[Any, Mapping[str, Callable[..., Any]]] = {
    Algorithm: ALGORITHMS,
    BitPolicy: BITS,
    BuildModel: MODELS,
    Channels: CHANNELS,
    Codec: CODECS,
    LoadData: DATASETS,
    Metric: METRICS,
    SplitData: PARTITIONS,
    Criterion: CRITERIA,
    Optimizer: OPTIMIZERS,
    ServerOptimizer: SERVER_OPTIMIZERS,
    Standardization: STANDARDIZATIONS,
}
PLAIN_TYPES = (bool, int, float, str, list, tuple, dict)  # what TOML can say
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# What a bare number or truth value means where a table is expected.
SHORTHANDS: dict[Any, tuple[Any, Callable[[Any], dict[str, Any]]]] = {
    BitPolicy: (int | float, lambda bits: {"name": "fixed", "bits": bits}),
    Standardization: (bool, lambda on: {"name": "ws" if on else "none"}),
}
# Settings that say where files lie: they may change when a run is resumed, as long as the files' contents do not.
PLACES = ("data.root", "data.path", "data.partition.path", "channels.path", "model.init")


def load_plan(
    config: str | Path = "quickstart", overrides: Mapping[str, Any] | Sequence[str] = ()
) -> Plan:
    """The plan of a TOML file, or of a shipped config by name, with `key=value` overrides."""
    return make_plan(read_config(config), overrides)


def make_plan(
    settings: Mapping[str, Any], overrides: Mapping[str, Any] | Sequence[str] = ()
) -> Plan:
    """The plan of nested settings with dotted overrides on top; unknown keys and wrong values are refused."""
    pairs = dict(
        overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides)
    )
    merged: dict[str, Any] = {}
    # In a file a method is the ground that the file's own settings stand on; given later, it goes on top of the file.
    for key, value in _expand(settings.get("method")).items():
        _override(merged, key, value)
    _merge(merged, {key: value for key, value in settings.items() if key != "method"})
    for key, value in {**_expand(pairs.pop("method", None)), **pairs}.items():
        _override(merged, key, value)
    plan: Plan = _build(Plan, merged, "")
    for direction, link in (("uplink", plan.uplink), ("downlink", plan.downlink)):
        _require_taken(direction, link, [settings.get(direction), *_tables_of(direction, pairs)])
    return plan


def _tables_of(direction: str, pairs: Mapping[str, Any]) -> list[Any]:
    """What dotted overrides say of one direction of the traffic, as a table."""
    dotted = {
        key.removeprefix(f"{direction}."): value
        for key, value in pairs.items()
        if key.startswith(f"{direction}.")
    }
    return [pairs.get(direction), dotted]


def _require_taken(direction: str, link: Link, said: Sequence[Any]) -> None:
    """Refuse bits that a codec of a single rate would pass over, where whoever gave them did not name that codec."""
    rate = only_rate(link.codec)
    for table in said:
        bits = table.get("bits") if isinstance(table, Mapping) and "codec" not in table else None
        bits = bits.get("bits") if isinstance(bits, Mapping) else bits
        if rate is not None and isinstance(bits, int | float) and bits != rate:
            name = _name_of(CODECS, type(link.codec))
            raise ConfigError(
                f"{direction}.bits is {bits}, but {direction}.codec is {name}, which has {rate:g} bits and no others; "
                f"name a codec too, such as {direction}.codec=danuq"
            )


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    folder = Path(str(files("fedwsq") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_config(config: str | Path) -> dict[str, Any]:
    """The settings in a TOML file or a shipped config."""
    shipped = shipped_configs()
    path = shipped.get(str(config), Path(config))
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        near = did_you_mean(str(config), shipped)
        raise ConfigError(
            f"no config {str(config)!r}: not a file, and not one of {', '.join(shipped)}{near}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def parse_override(text: str) -> tuple[str, Any]:
    """`uplink.bits=4` -> ("uplink.bits", 4); the value is TOML, or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r} is not an override; write key=value, for example rounds=20")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def plan_settings(plan: Plan) -> dict[str, Any]:
    """The plan as nested settings, every default spelled out; `make_plan` of them gives the plan back."""
    settings: dict[str, Any] = _dump(Plan, plan)
    return settings


def dump_plan(plan: Plan) -> str:
    """The plan as TOML; `load_plan` of it gives the plan back."""
    return tomli_w.dumps(plan_settings(plan))


def places(plan: Plan) -> dict[str, str]:
    """Where the plan says that its files lie, by key."""
    found: dict[str, str] = {}
    for key in PLACES:
        value: Any = plan_settings(plan)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            found[key] = value
    return found


def locate(plan: Plan) -> Plan:
    """The plan with those places written out in full, so that they are found from any folder."""
    full = {key: str(Path(place).expanduser().absolute()) for key, place in places(plan).items()}
    return plan if full == places(plan) else make_plan(plan_settings(plan), full)


def plan_digest(plan: Plan) -> str:
    """Sixteen hex digits that two runs share when only their number of rounds may differ."""
    settings = plan_settings(plan)
    del settings["rounds"]
    return hashlib.blake2b(tomli_w.dumps(settings).encode(), digest_size=8).hexdigest()


def _expand(method: Any) -> dict[str, Any]:
    """The dotted settings of a method; none without one."""
    if method is None:
        return {}
    if not isinstance(method, str) or method not in METHODS:
        raise ConfigError(
            f"method is {method!r}; it can be {', '.join(METHODS)}{did_you_mean(method, METHODS)}"
        )
    return copy.deepcopy(
        {**PLAIN, **METHODS[method].settings}
    )  # overrides change what they are given


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> None:
    """Put `top` over `base`, table by table; a table that names its entry replaces what was there."""
    for key, value in top.items():
        if not isinstance(value, Mapping):
            base[key] = value
            continue
        below = base.get(key)
        base[key] = dict(below) if isinstance(below, dict) and "name" not in value else {}
        _merge(base[key], value)


def _override(settings: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for depth, part in enumerate(path):
        inner = settings.setdefault(part, {})
        if isinstance(inner, str):  # the bare name of a table
            inner = settings[part] = {"name": inner}
        if not isinstance(inner, dict):
            where = ".".join(path[: depth + 1])
            raise ConfigError(
                f"{where} is {inner!r}, so {key} cannot be set; give {where} a table with a name instead"
            )
        settings = inner
    if (
        isinstance(value, str)
        and isinstance(settings.get(last), dict)
        and settings[last].get("name") == value
    ):
        return  # the name it has already: keep its other fields
    settings[last] = value


def _build(hint: Any, value: Any, where: str) -> Any:
    """A value of the type that `hint` asks for."""
    if hint in TABLES:
        return _build_entry(hint, value, where)
    if is_dataclass(hint):
        return _build_fields(hint, _table(value, where), where)
    origin = get_origin(hint)
    if origin is Literal:
        options = get_args(hint)
        if value not in options:
            raise ConfigError(
                f"{where} is {value!r}; it can be {', '.join(options)}{did_you_mean(value, options)}"
            )
        return value
    if origin in (Union, types.UnionType):
        *others, last = (option for option in get_args(hint) if option is not type(None))
        for option in others:
            if isinstance(value, str) == (option is str or get_origin(option) is Literal):
                return _build(option, value, where)
        return _build(last, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {value!r}, must be a list")
        return tuple(
            _build(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(value)
        )
    return value if hint is Any else _build_scalar(hint, value, where)


def _build_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        kind = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}[
            hint
        ]
        raise ConfigError(f"{where} is {value!r}, must be {kind}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} is {value}, must be a finite number")
    return value


def _build_entry(hint: Any, value: Any, where: str) -> Any:
    """An entry of one of the tables, with its own fields."""
    if isinstance(value, str):
        value = {"name": value}
    elif hint in SHORTHANDS and isinstance(value, SHORTHANDS[hint][0]):
        value = SHORTHANDS[hint][1](value)
    settings = dict(_table(value, where))
    name = settings.pop("name", None)
    if name is None:
        raise ConfigError(f"{where} needs a name: one of {', '.join(TABLES[hint])}")
    target = _find(TABLES[hint], name, where)
    if issubclass(hint, Recipe):
        hints = get_type_hints(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
        possible = hint(name, target).settings.items()
        known = {
            key: hints.get(key, _kind_of(p.default))
            for key, p in possible
            if p.kind not in VARIADIC
        }
        return hint(name, target, _build_known(known, settings, where, name))
    if not is_dataclass(target):
        raise ConfigError(f"{where} is {name!r}, which is not a dataclass")
    return _build_fields(target, settings, where, name)


def _kind_of(default: Any) -> Any:
    """The type of a setting that has no annotation."""
    return type(default) if isinstance(default, bool | int | float | str) else Any


def _find(table: Mapping[str, Callable[..., Any]], name: Any, where: str) -> Any:
    if not isinstance(name, str):
        raise ConfigError(f"{where}.name is {name!r}, must be a string")
    if name in table:
        return table[name]
    if ":" not in name:
        offer = f"{', '.join(table)} or module:name{did_you_mean(name, table)}"
        raise ConfigError(f"{where} is {name!r}; it can be {offer}")
    module, _, attribute = name.partition(":")
    if module == "__main__":
        raise ConfigError(
            f"{where} is {name!r}, in the script that runs; put it into a file that can be imported"
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} is {name!r}, which cannot be imported: {error}") from None
    if not callable(found):
        raise ConfigError(
            f"{where} is {name!r}, which is {type(found).__name__}, not a function or a class"
        )
    return found


def _build_fields(target: Any, settings: dict[str, Any], where: str, name: str = "") -> Any:
    """A dataclass from its settings; keys that are not its own go to its `flat` field."""
    hints = get_type_hints(target)
    own = {f.name: hints[f.name] for f in fields(target) if f.init and not f.metadata.get("flat")}
    values: dict[str, Any] = {}
    for f in fields(target):
        if f.metadata.get("flat"):
            rest = {key: settings.pop(key) for key in list(settings) if key not in own}
            assert f.default is not MISSING
            rest.setdefault("name", f.default.name)
            values[f.name] = _build(hints[f.name], rest, where)
    for f in fields(target):  # a setting of what is there by default needs no name before it
        if (
            hints[f.name] in TABLES
            and isinstance(settings.get(f.name), Mapping)
            and f.default is not MISSING
        ):
            settings[f.name] = {"name": _dump(hints[f.name], f.default)["name"], **settings[f.name]}
    values |= _build_known(own, settings, where, name)
    try:
        return target(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


def _build_known(
    known: Mapping[str, Any], settings: Mapping[str, Any], where: str, name: str
) -> dict[str, Any]:
    for key in settings:
        if key not in known:
            place = f"{where}.{key}" if where else key
            owner = name or where or "a plan"
            hint = did_you_mean(key, known) or _elsewhere(key, place)
            raise ConfigError(
                f"unknown key {place}; {owner} has {', '.join(known) or 'no settings'}{hint}"
            )
    return {
        key: _build(known[key], value, f"{where}.{key}" if where else key)
        for key, value in settings.items()
    }


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} is {value!r}, must be a table such as {where} = {{ name = ... }}"
        )
    return dict(value)


def _elsewhere(key: str, place: str) -> str:
    """A hint when the key exists in another table: `alpha` -> data.partition.alpha."""

    def paths(settings: Mapping[str, Any], prefix: str) -> list[str]:
        found = []
        for name, value in settings.items():
            found += (
                paths(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [prefix + name]
            )
        return found

    common = ["data.root", "data.partition.alpha", "model.standardize.rho", "uplink.codec.momentum"]
    every = [path for path in (*paths(plan_settings(Plan()), ""), *common) if path != place]
    leaves = {path.rpartition(".")[2]: path for path in every}
    close = difflib.get_close_matches(key, leaves, n=1)
    return f"; did you mean {leaves[close[0]]}?" if close else ""


def _dump(hint: Any, value: Any) -> Any:
    """The settings that `_build` would turn back into `value`."""
    if isinstance(value, Recipe):
        # None and what TOML cannot say, such as a class, can only be the function's own default.
        return {
            "name": value.name,
            **{key: each for key, each in value.options.items() if isinstance(each, PLAIN_TYPES)},
        }
    if is_dataclass(value):
        hints = get_type_hints(type(value))
        settings: dict[str, Any] = {}
        if hint in TABLES:
            settings["name"] = _name_of(TABLES[hint], type(value))
        for f in fields(value):
            inner = _dump(hints[f.name], getattr(value, f.name))
            if inner is None:
                continue
            settings |= inner if f.metadata.get("flat") else {f.name: inner}
        return settings
    return list(value) if isinstance(value, tuple) else value


def _name_of(table: Mapping[str, Callable[..., Any]], target: type) -> str:
    names = [name for name, entry in table.items() if entry is target]
    if not names and target.__module__ == "__main__":
        raise ConfigError(
            f"{target.__qualname__} is defined in the script that runs, where workers and a later resume cannot find "
            "it; put it into a file that can be imported"
        )
    return names[0] if names else f"{target.__module__}:{target.__qualname__}"
