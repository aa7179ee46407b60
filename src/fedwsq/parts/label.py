"""What a packed dictionary says of itself: its tensors' names, shapes and types, and its codec.

The label is the text of the message, JSON:

    {"codec": {"name": "danuq", ...}, "bits": 4, "tensors": [["w", [10, 64], "float32", true], ...]}

The last word about a tensor is whether the codec codes it or it travels exact. Nothing in a label
from elsewhere is believed before it was checked.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from fedwsq.codecs import CODECS
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Shape, Shapes
from fedwsq.parts.integers import INTEGERS
from fedwsq.plan import Plan, make_plan, plan_settings
from fedwsq.wire import Link, Uplink

FLOATS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
KEYS = {"codec", "bits", "tensors"}
PLACE = "uplink"  # where a plan has a codec with its bits
MAX_REASON = 300  # characters
MAX_DIMENSIONS = 64
MAX_DIGITS = 18  # of a whole number in a label: below 2^63


class Row(NamedTuple):
    """What is said of one tensor."""

    name: str
    shape: Shape
    dtype: str
    coded: bool  # by the codec; otherwise it travels exact

    @property
    def span(self) -> int:
        """Its elements, were none of its dimensions 0: torch counts memory in strides too."""
        return math.prod(max(size, 1) for size in self.shape)


@dataclass(frozen=True)
class Label:
    """The codec with its bits, and the tensors in their order."""

    link: Link
    rows: tuple[Row, ...]

    @property
    def shapes(self) -> Shapes:
        return {row.name: row.shape for row in self.rows}

    @property
    def span(self) -> int:
        """An upper bound of all elements."""
        return sum(row.span for row in self.rows)


def write_label(label: Label) -> str:
    link = label.link
    codec = codec_settings(link)
    require_own(codec)
    (bits,) = link.bits.grants
    said = {"codec": codec, "bits": bits, "tensors": label.rows}
    return json.dumps(said, separators=(",", ":"))


def codec_settings(link: Link) -> dict[str, Any]:
    """The codec as a plan's TOML names it: with all that it can be told."""
    plan = replace(Plan(), uplink=Uplink(link.codec, link.bits, link.select))
    settings: dict[str, Any] = plan_settings(plan)[PLACE]["codec"]
    return settings


def read_label(text: str) -> Label:
    """The label that a text is, or `MessageError`."""
    try:
        said = json.loads(text, parse_int=_short_int)
    except (ValueError, RecursionError):
        raise MessageError(f"a packed dictionary without a label: {text[:80]!r}") from None
    if not isinstance(said, dict) or said.keys() != KEYS:
        raise MessageError(f"the label of a packed dictionary has {', '.join(sorted(KEYS))}")
    if not isinstance(said["tensors"], list):
        raise MessageError("the tensors of a packed dictionary are not a list")

    link = _read_link(said["codec"], said["bits"])
    rows = tuple(_read_row(row, place) for place, row in enumerate(said["tensors"]))
    label = Label(link, rows)
    if len(label.shapes) != len(rows):
        raise MessageError("a packed dictionary has two tensors of the same name")
    return label


# The codec.


def build_link(codec: object, bits: object) -> Link:
    """The codec that a label names, built as a plan builds what its TOML names."""
    if not isinstance(codec, dict):
        raise ConfigError("its settings are not a table")
    require_own(codec)
    # Bits may be a table in a plan, and name code; here they are one number.
    if isinstance(bits, bool) or not isinstance(bits, int | float):
        raise ConfigError("its bits are not a number")
    settings = {"codec": codec, "bits": bits, "select": "all"}
    return make_plan({PLACE: settings}).uplink


def _read_link(codec: object, bits: object) -> Link:
    try:
        return build_link(codec, bits)
    except RecursionError:
        raise MessageError("the codec of a packed dictionary is nested too deep") from None
    except ConfigError as error:
        # It may repeat what it refuses, at any length, and calls the codec by a plan's key for it.
        reason = str(error)[:MAX_REASON]
        reason = reason.replace(f"{PLACE}.", "").removeprefix(f"{PLACE}: ")
        raise MessageError(f"the codec of a packed dictionary: {reason}") from None


def require_own(settings: Any) -> None:
    """Refuse settings that reach for code outside the package, at any depth."""
    if isinstance(settings, dict):
        settings = list(settings.values())
    if isinstance(settings, list):
        for value in settings:
            require_own(value)
    # A plan imports what has a colon in it. Bytes from elsewhere must not.
    elif isinstance(settings, str) and ":" in settings:
        raise ConfigError(
            f"{settings[:80]!r} is outside the package; a packed dictionary has one of "
            f"{', '.join(CODECS)}"
        )


# The tensors.


def check_row(row: Row) -> None:
    """Raise `ConfigError` for a tensor that no packed dictionary holds."""
    if row.dtype not in (*FLOATS, *INTEGERS):
        raise ConfigError(f"its type is {row.dtype[:80]}; it can be {', '.join(FLOATS)} or integer")
    if row.coded and row.dtype not in FLOATS:
        raise ConfigError(f"{row.dtype} values travel exact")
    if len(row.shape) > MAX_DIMENSIONS:
        raise ConfigError(f"it has {len(row.shape)} dimensions, at most {MAX_DIMENSIONS} travel")
    try:
        row.name.encode()
    except UnicodeEncodeError:
        raise ConfigError("its name is not Unicode") from None


def _read_row(said: object, place: int) -> Row:
    match said:
        case [str(name), list(shape), str(dtype), bool(coded)] if all(map(_is_size, shape)):
            row = Row(name, tuple(shape), dtype, coded)
        case _:
            raise MessageError(f"tensor {place} of a packed dictionary is not described")
    try:
        check_row(row)
    except ConfigError as error:
        raise MessageError(f"tensor {place} of a packed dictionary: {error}") from None
    return row


def _is_size(value: object) -> bool:
    # To Python, true is a number too.
    return type(value) is int and value >= 0


def _short_int(digits: str) -> int:
    # Past this a number is no size, and Python's own conversions to float and text may fail.
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)
