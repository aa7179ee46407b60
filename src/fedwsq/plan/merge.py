"""One table of settings out of several: a method's, a file's, and overrides on top."""

from collections.abc import Mapping
from typing import Any

from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.plan.methods import METHODS, PLAIN
from fedwsq.plan.read import Settings


def merge(settings: Mapping[str, Any], overrides: Settings) -> Settings:
    """The nested settings of a file with dotted overrides on top, methods spelled out.

    In a file a method is the ground that the file's own settings stand on; as an override it goes
    on top of the file, below the other overrides.
    """
    merged: Settings = {}
    # An override's method stands in the place of the file's: its downlink would stay otherwise.
    ground = {} if "method" in overrides else method_settings(settings.get("method"))
    for key, value in ground.items():
        _override(merged, key, value)
    _lay_over(merged, settings)
    # One table and not two in turn: an override replaces what the method says of the same key.
    above = {**method_settings(overrides.get("method")), **overrides}
    for key, value in above.items():
        _override(merged, key, value)
    merged.pop("method", None)
    return merged


def method_settings(method: object) -> Settings:
    """The dotted settings of a method by name; none without one."""
    if method is None:
        return {}
    if not isinstance(method, str) or method not in METHODS:
        offer = f"{', '.join(METHODS)}{did_you_mean(method, METHODS)}"
        raise ConfigError(f"method is {method!r}; it can be {offer}")
    return {**PLAIN, **METHODS[method].settings}


def _lay_over(base: Settings, top: Mapping[str, Any]) -> None:
    """Put `top` over `base`, table by table."""
    for key, value in top.items():
        if not isinstance(value, Mapping):
            base[key] = value
            continue
        # A table that names its entry has nothing to do with the fields of another entry.
        if "name" in value or not isinstance(base.get(key), dict):
            base[key] = {}
        _lay_over(base[key], value)


def _override(settings: Settings, key: str, value: Any) -> None:
    """Set one dotted key, in tables that are made on the way."""
    *path, last = key.split(".")
    for depth, part in enumerate(path, start=1):
        inner = settings.setdefault(part, {})
        # `codec = "danuq"` and then codec.momentum: the bare name of a table becomes the table.
        if isinstance(inner, str):
            inner = settings[part] = {"name": inner}
        if not isinstance(inner, dict):
            where = ".".join(path[:depth])
            raise ConfigError(
                f"{where} is {inner!r}, so {key} cannot be set; "
                f"give {where} a table with a name instead"
            )
        settings = inner

    present = settings.get(last)
    if isinstance(present, dict) and isinstance(value, str) and present.get("name") == value:
        return  # the name it has already: keep its other fields
    # Over nothing, which copies tables: a later override may set a field of one that was given.
    settings[last] = None
    _lay_over(settings, {last: value})
