"""Whether plain data from a file, as JSON has it, is what an annotation says."""

import math
import types
from typing import Any, Union, get_args, get_origin

MAX_INT = 2**63  # what is beyond is no count, and Python's own conversions of it may fail


def fits(value: object, hint: Any) -> bool:
    """Numbers are finite and within 64 bits; true is no number, and a whole one is a float too."""
    inner = get_args(hint)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin is list:
        return isinstance(value, list) and all(fits(x, inner[0]) for x in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, inner[0]) and fits(x, inner[1]) for key, x in value.items()
        )
    if type(value) is int:
        return hint in (int, float) and -MAX_INT <= value < MAX_INT
    if type(value) is float:
        return hint is float and math.isfinite(value)
    return type(value) is hint
