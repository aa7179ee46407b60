"""What people write: a config file, the name of a shipped one, `key=value` on a command line."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from fedwsq.core.errors import ConfigError, did_you_mean

Settings: TypeAlias = dict[str, Any]  # tables in tables, as TOML has them


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
    path = known.get(str(name), Path(name))
    try:
        # Some editors put a byte order mark before UTF-8.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        offer = f"{', '.join(known)}{did_you_mean(name, known)}"
        raise ConfigError(f"no {kind} {str(name)!r}: not a file, and not one of {offer}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {kind} {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


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
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested settings by dotted name: {"uplink": {"bits": 4}} -> {"uplink.bits": 4}."""
    found: Settings = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= dotted(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
