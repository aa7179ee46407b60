"""TOML to the frozen dataclasses of a plan, with overrides and errors that help.

A table with a `name` chooses an entry of a table in the code (`algorithm`, `uplink.codec`, ...);
its other keys are that entry's fields. The bare name will do where the defaults are wanted, and
`"my_lab.fedx:FedX"` reaches code outside the package.
"""

import inspect
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from fedwsq.codecs import Codec, Fixed
from fedwsq.codecs.rates import USUAL_BITS
from fedwsq.core.checked import LARGEST
from fedwsq.core.errors import ConfigError, did_you_mean, nearest
from fedwsq.core.recipe import Recipe
from fedwsq.plan.merge import merge
from fedwsq.plan.read import Settings, as_overrides, read_config
from fedwsq.plan.settings import Plan
from fedwsq.plan.tables import SHORTHANDS, TABLES, find_entry, name_of
from fedwsq.wire import Link

Hints: TypeAlias = dict[str, Any]  # the type of each setting
Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]  # by dotted key, or `key=value` words

# How an error calls the types that TOML has.
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# What people often set, and the default plan does not have.
COMMON = ("data.root", "data.partition.alpha", "model.standardize.rho", "uplink.codec.momentum")


def load_plan(config: str | Path = "quickstart", overrides: Overrides = ()) -> Plan:
    """The plan of a TOML file, or of a shipped config by name, with `key=value` overrides."""
    return make_plan(read_config(config), overrides)


def make_plan(settings: Mapping[str, Any], overrides: Overrides = ()) -> Plan:
    """The plan of nested settings with overrides on top.

    Unknown keys and wrong values are refused, with the way out.
    """
    by_key = as_overrides(overrides)
    try:
        plan: Plan = _build(Plan, merge(settings, by_key), "")
    except RecursionError:
        raise ConfigError(
            "the settings are nested too deep; no plan has more than a few levels"
        ) from None

    # Only now is it known which codec the bits are for.
    for direction, link in (("uplink", plan.uplink), ("downlink", plan.downlink)):
        dotted = _below(direction, by_key)
        given = [settings.get(direction), by_key.get(direction), dotted]
        _require_bits(direction, link, given)
    return plan


# Bits for a codec that has no choice of them.


def _require_bits(direction: str, link: Link, given: Iterable[object]) -> None:
    """Refuse bits that a codec of a single rate would pass over.

    Only where whoever gave them did not name a codec: bits that came with one go with it.
    """
    rate = link.codec.rates.only
    for table in given:
        bits = _bits_alone(table)
        if rate is not None and bits is not None and bits != rate:
            raise ConfigError(
                f"{direction}.bits is {bits}, but {direction}.codec is "
                f"{name_of(Codec, link.codec)}, which has {rate:g} bits and no others; "
                f"name a codec too, such as {direction}.codec=danuq"
            )


def _bits_alone(table: object) -> float | None:
    """The number of bits in one direction's settings that do not name a codec."""
    if not isinstance(table, Mapping) or "codec" in table:
        return None
    bits = table.get("bits")
    if isinstance(bits, Mapping):  # a policy with its settings
        bits = bits.get("bits")
    if isinstance(bits, int | float):
        return bits
    return None


def _below(table: str, dotted: Settings) -> Settings:
    """What dotted settings say of one table."""
    prefix = f"{table}."
    return {
        key.removeprefix(prefix): value for key, value in dotted.items() if key.startswith(prefix)
    }


# A value of each kind of type.


def _build(hint: Any, value: Any, where: str) -> Any:
    """A value of the type that `hint` asks for; `where` is its dotted key, for errors."""
    if hint in TABLES:
        return _entry(hint, value, where)
    if is_dataclass(hint):
        if isinstance(value, str) and any(f.metadata.get("flat") for f in fields(hint)):
            # Not taken as its name: the other settings of the table would go without a word.
            raise ConfigError(f"{where} is {value!r}, but is a table; say {where}.name={value}")
        return _dataclass(hint, _table(value, where), where, owner=where or "a plan")
    build = BUILDERS.get(get_origin(hint), _plain)
    return build(hint, value, where)


def _entry(kind: Any, value: object, where: str) -> Any:
    """An entry of the table of its kind, with its own fields."""
    if kind in SHORTHANDS:
        value = SHORTHANDS[kind](value)
    if isinstance(value, str):
        value = {"name": value}
    settings = _table(value, where)
    name = settings.pop("name", None)
    # A table that has a default has been given its name by now.
    if name is None:
        raise ConfigError(f"{where} needs a name: one of {', '.join(TABLES[kind])}")

    target = find_entry(kind, name, where)
    # Functions wait in a recipe for what a run will give them; classes are made at once.
    if issubclass(kind, Recipe):
        recipe = kind(name, target)
        options = _known(_option_hints(recipe), settings, where, owner=name)
        return replace(recipe, options=options)
    if not is_dataclass(target):
        raise ConfigError(f"{where} is {name!r}, which is not a dataclass")
    return _dataclass(target, settings, where, owner=name)


def _dataclass(target: Any, settings: Settings, where: str, owner: str) -> Any:
    """A dataclass from its settings; keys that are not its own go to its `flat` field."""
    hints = get_type_hints(target)
    flat = [f for f in fields(target) if f.metadata.get("flat")]
    own = {f.name: hints[f.name] for f in fields(target) if f.init and f not in flat}

    values: Settings = {}
    for f in fields(target):
        kind = hints[f.name]
        if f in flat:
            foreign = {key: settings.pop(key) for key in list(settings) if key not in own}
            values[f.name] = _build(kind, _named(f, kind, foreign), where)
        elif kind in TABLES and isinstance(settings.get(f.name), Mapping):
            settings[f.name] = _named(f, kind, settings[f.name])
    values |= _known(own, settings, where, owner)
    if issubclass(target, Link) and "codec" in values:
        values.setdefault("bits", Fixed(values["codec"].rates.nearest(USUAL_BITS)))

    # A dataclass checks its fields without knowing where in a plan it stands.
    try:
        return target(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


def _named(f: "Field[Any]", kind: Any, settings: Mapping[str, Any]) -> Settings:
    """A setting of the entry that is there by default needs no name before it."""
    if f.default is MISSING:
        return dict(settings)
    return {"name": name_of(kind, f.default), **settings}


def _choice(hint: Any, value: Any, where: str) -> Any:
    options = get_args(hint)
    if value not in options:
        offer = f"{', '.join(map(str, options))}{did_you_mean(value, options)}"
        raise ConfigError(f"{where} is {value!r}; it can be {offer}")
    return value


def _union(hint: Any, value: Any, where: str) -> Any:
    """Words go to the first option that takes words, other values to the first that does not."""
    # None is left out: TOML cannot say it, it can only be a default.
    *others, last = (option for option in get_args(hint) if option is not type(None))
    for option in others:
        takes_words = option is str or get_origin(option) is Literal
        if isinstance(value, str) == takes_words:
            return _build(option, value, where)
    return _build(last, value, where)


def _tuple(hint: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {value!r}, must be a list")
    kind = get_args(hint)[0]
    return tuple(_build(kind, item, f"{where}[{i}]") for i, item in enumerate(value))


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    # To Python, true is a whole number too; to the writer of a config it is a mistake.
    truth = isinstance(value, bool)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(f"{where} is {brief(value)}, must be within 64 bits")
    if hint is float and isinstance(value, int) and not truth:
        value = float(value)
    kind = get_origin(hint) or hint  # of list[int], list
    if not isinstance(value, kind) or (truth and hint is not bool):
        raise ConfigError(f"{where} is {value!r}, must be {WORDS.get(hint, hint)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} is {value}, must be a finite number")
    return value


# By what a type is made of; a type that is made of nothing else is plain.
BUILDERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    Literal: _choice,
    Union: _union,
    types.UnionType: _union,
    tuple: _tuple,
}


# Tables and their keys.


def _table(value: object, where: str) -> Settings:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} is {value!r}, must be a table such as {where} = {{ name = ... }}"
        )
    for key in value:
        if not isinstance(key, str):
            raise ConfigError(
                f"{where or 'a plan'} has the key {key!r}, must be the name of a setting"
            )
    return dict(value)


def _known(hints: Hints, settings: Settings, where: str, owner: str) -> Settings:
    """The settings as values of the types that `hints` lists; `owner` has no other keys."""
    prefix = f"{where}." if where else ""
    for key in settings:
        if key not in hints:
            # A plan can be told a method too, which stands for some of its settings.
            known = hints if where else (*hints, "method")
            offer = ", ".join(known) or "no settings"
            near = did_you_mean(key, known) or _elsewhere(key, prefix + key)
            raise ConfigError(f"unknown key {prefix}{key}; {owner} has {offer}{near}")
    return {key: _build(hints[key], value, prefix + key) for key, value in settings.items()}


def _option_hints(recipe: Recipe) -> Hints:
    """The types of a function's settings: as annotated, else as their defaults are."""
    function: Any = recipe.function
    # The annotations of a class are those of its attributes, not of its arguments.
    if isinstance(function, type):
        function = cast(Any, function).__init__
    annotated = get_type_hints(function)
    hints: Hints = {}
    for key, parameter in recipe.settings.items():
        if parameter.kind in VARIADIC:  # *args and **kwargs have no names to set
            continue
        by_default = type(parameter.default)
        if by_default not in WORDS:
            by_default = Any
        hints[key] = annotated.get(key, by_default)
    return hints


def _elsewhere(key: str, place: str) -> str:
    """A hint when the key exists in another table: `alpha` -> data.partition.alpha."""
    every = (*_keys(Plan()), *COMMON)
    leaves = {path.rpartition(".")[2]: path for path in every if path != place}
    close = nearest(key, leaves)
    return f"; did you mean {leaves[close]}?" if close else ""


def _keys(value: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all settings in a dataclass."""
    if isinstance(value, Recipe):
        yield from (prefix + key for key in value.options)
        return
    for f in fields(value):
        inner = getattr(value, f.name)
        if not is_dataclass(inner):
            yield prefix + f.name
        elif f.metadata.get("flat"):
            yield from _keys(inner, prefix)
        else:
            yield from _keys(inner, f"{prefix}{f.name}.")
