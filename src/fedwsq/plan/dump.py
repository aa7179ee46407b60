"""A plan as settings and as TOML, every default spelled out, and its digest."""

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import tomli_w

from fedwsq.core.recipe import Recipe
from fedwsq.plan.bounds import Bounds
from fedwsq.plan.combine import Mean
from fedwsq.plan.read import Settings
from fedwsq.plan.settings import Plan
from fedwsq.plan.tables import TABLES, name_of

PLAIN_TYPES = (bool, int, float, str, list, tuple, dict)  # what TOML can say


def plan_settings(plan: Plan) -> Settings:
    """The plan as nested settings, every default spelled out; `make_plan` gives it back."""
    settings: Settings = _dump(Plan, plan)
    return settings


def entry_settings(kind: Any, entry: object) -> Settings:
    """The settings of one entry of a table, its name included: `entry_settings(Codec, Danuq())`."""
    settings: Settings = _dump(kind, entry)
    return settings


def dump_plan(plan: Plan) -> str:
    """The plan as TOML; `load_plan` of it gives the plan back."""
    return tomli_w.dumps(plan_settings(plan))


def plan_digest(plan: Plan) -> str:
    """Sixteen hex digits that two runs share when what they compute does not differ."""
    settings = plan_settings(plan)
    # A run that goes on for longer or keeps more is still the same run, and so is one on another
    # machine.
    for name in ("rounds", "patience", "record"):
        del settings[name]
    # A run from before these were there is the same run as one with what they first were.
    for name, first in (("bounds", Bounds(norm=4.0)), ("combine", Mean())):
        if getattr(plan, name) == first:
            del settings[name]
    return hashlib.blake2b(tomli_w.dumps(settings).encode(), digest_size=8).hexdigest()


def _dump(hint: Any, value: Any) -> Any:
    """The settings that `make_plan` would turn back into `value`, in a field of type `hint`."""
    if isinstance(value, Recipe):
        return _dump_recipe(value)
    if is_dataclass(value):
        return _dump_fields(hint, value)
    if isinstance(value, tuple):
        return list(value)
    return value


def _dump_recipe(recipe: Recipe) -> Settings:
    settings: Settings = {"name": recipe.name}
    for key, value in recipe.options.items():
        # None and what TOML cannot say, such as a class, can only be the function's own default.
        if isinstance(value, PLAIN_TYPES):
            settings[key] = _dump(None, value)
    return settings


def _dump_fields(hint: Any, value: Any) -> Settings:
    hints = get_type_hints(type(value))
    settings: Settings = {}
    # Where one of several may stand, it takes a name to say which.
    if hint in TABLES:
        settings["name"] = name_of(hint, value)
    for f in fields(value):
        inner = _dump(hints[f.name], getattr(value, f.name))
        if f.metadata.get("flat"):
            settings |= inner
        elif inner is not None:  # which TOML cannot say
            settings[f.name] = inner
    return settings
