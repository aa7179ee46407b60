"""JSON that somebody else wrote, as one of our dataclasses: every field of its type, or refused."""

import types
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 2**63 - 1  # whole number: JSON has no limit, those who count with it do
LARGEST_FLOAT = 1e150  # so that sums and squares of such numbers are finite


def checked(kind: type[T], found: object) -> T:
    """A `kind` of what JSON says; keys of other versions are left out. ValueError if it is none."""
    if not isinstance(found, Mapping):
        raise ValueError(f"{type(found).__name__} where a table was expected")
    hints = field_types(cast(Hashable, kind))
    known = {key: value for key, value in found.items() if key in hints}
    for key, value in known.items():
        if not fits(hints[key], value):
            raise ValueError(f"{key} is of type {type(value).__name__}, or not a finite number")
    missing = [name for name in required(cast(Hashable, kind)) if name not in known]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return kind(**known)


@cache
def required(kind: Any) -> tuple[str, ...]:
    """The fields without a default."""
    found = []
    for f in fields(kind):
        if f.default is MISSING and f.default_factory is MISSING:
            found.append(f.name)
    return tuple(found)


@cache
def field_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def fits(hint: Any, value: object) -> bool:
    """Whether a value of JSON is one of this type, to the last element."""
    inner = get_args(hint)
    if get_origin(hint) is types.UnionType:
        return any(fits(each, value) for each in inner)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(fits(inner[0], each) for each in value)
    if get_origin(hint) is dict:  # JSON has no keys but words
        return isinstance(value, dict) and all(fits(inner[1], each) for each in value.values())
    if hint is float:
        # Python reads NaN and Infinity, which JSON does not have; true is no number here.
        return fits(int, value) or (type(value) is float and abs(value) <= LARGEST_FLOAT)
    if hint is int:
        return type(value) is int and -LARGEST <= value <= LARGEST
    return type(value) is hint
