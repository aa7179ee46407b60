"""What people write: a config file, the name of a shipped one, `key=value` on a command line."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from reprlib import repr as brief
from typing import Any, TypeAlias

from fedwsq.core.errors import ConfigError, did_you_mean
from fedwsq.core.text import read_text

Settings: TypeAlias = dict[str, Any]  # tables in tables, as TOML has them
CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
MAX_DEPTH = 32  # of tables and lists in one another; a plan has half a dozen
MAX_BYTES = 2**18  # of a config; our longest has some two thousand
# A key of so many parts: tomllib takes a time for them that grows with their square.
LONG_KEY = re.compile(
    r"""(?<![\w-]) (?:
    (?: [\w-]{1,200} | "(?:[^"\\\n]|\\.){0,200}" | '[^'\n]{0,200}' )
    [ \t]{0,50} \. [ \t]{0,50}
    ){40}""",
    re.ASCII | re.VERBOSE,
)


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    return shipped("configs")


def shipped(folder: str) -> dict[str, Path]:
    """The TOML files in a folder of the package, by name."""
    path = Path(str(files("fedwsq") / folder))
    return {file.stem: file for file in sorted(path.glob("*.toml"))}


def read_config(config: str | Path) -> Settings:
    """The settings in a TOML file or a shipped config."""
    return read_toml(config, shipped_configs(), "config")


def read_toml(name: str | Path, known: Mapping[str, Path], kind: str) -> Settings:
    """What is in a file, or in one of the `known` by name; `kind` is what errors call it."""
    path = known.get(str(name), as_path(name, kind))
    try:
        return parse_toml(read_text(path, MAX_BYTES))
    except FileNotFoundError:
        offer = f"{', '.join(known)}{did_you_mean(name, known)}"
        raise ConfigError(f"no {kind} {str(name)!r}: not a file, and not one of {offer}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {kind} {path}: {error}") from None


def as_path(value: object, what: str) -> Path:
    """A path out of a program, where anything may have been given for one."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{what} is {brief(value)}, must be a path: a string or a Path")
    return Path(value)


def parse_toml(text: str) -> Settings:
    """What TOML from anywhere says; ValueError if it cannot be read, or is no plan's size."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    if LONG_KEY.search(text):
        raise ValueError("it has a key of more than 40 parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:  # brackets in brackets
        raise ValueError("it is nested too deep") from None
    _require_shallow(found, "it")
    return found


def _require_shallow(settings: object, where: str, left: int = MAX_DEPTH) -> None:
    """Refuse what is nested too deep for all that looks at it later."""
    if not left:
        raise ConfigError(f"{where} is nested more than {MAX_DEPTH} deep; a plan is not")
    for each in _inner(settings):
        _require_shallow(each, where, left - 1)


def _inner(settings: object) -> Iterable[object]:
    if isinstance(settings, dict):
        return settings.values()
    return settings if isinstance(settings, list) else ()


def code_named(settings: object) -> list[str]:
    """All that looks like `module:name` in nested settings, each once."""
    if isinstance(settings, str):
        return [settings] if CODE.fullmatch(settings) else []
    found = [name for each in _inner(settings) for name in code_named(each)]
    return list(dict.fromkeys(found))


def as_overrides(given: object) -> Settings:
    """Overrides by dotted key, of a mapping or of `key=value` words."""
    if isinstance(given, str):
        raise ConfigError(f"overrides are {given!r}, must be a list of such words: [{given!r}]")
    if isinstance(given, Mapping):
        for key in given:
            _require_word(key, "the key of an override", "uplink.bits")
        return dict(given)
    if not isinstance(given, Iterable):
        raise ConfigError(
            f"overrides are {brief(given)}, must be a dictionary such as {{'rounds': 20}}, or a "
            "list such as ['rounds=20']"
        )
    words = list(given)
    for word in words:
        _require_word(word, "an override", "rounds=20")
    return parse_overrides(words)


def _require_word(word: object, what: str, example: str) -> None:
    if not isinstance(word, str):
        raise ConfigError(f"{what} is {brief(word)}, must be a string such as {example!r}")


def parse_overrides(words: Iterable[str]) -> Settings:
    """`key=value` words by key, each of which may be given once."""
    found: Settings = {}
    given: dict[str, str] = {}
    for word in words:
        key, value = parse_override(word)
        # The last would win in silence, and the first is as likely to be the one that was meant.
        if key in given:
            raise ConfigError(f"{key} is given twice, {given[key]} and {word}; keep one of them")
        given[key] = word
        found[key] = value
    return found


def parse_override(text: str) -> tuple[str, Any]:
    """`uplink.bits=4` -> ("uplink.bits", 4); the value is TOML, or else a plain string."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{text!r} is not an override; write key=value, for example rounds=20")
    # A plain word needs no quotes: most shells would take them away.
    try:
        found = tomllib.loads(f"value = {value}")["value"]
        _require_shallow(found, key)
        return key, found
    except tomllib.TOMLDecodeError:
        return key, value
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{key} cannot be read: {error}") from None


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested settings by dotted name: {"uplink": {"bits": 4}} -> {"uplink.bits": 4}."""
    found: Settings = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= dotted(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
