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
    folder = Path(str(files("fedwsq") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_config(config: str | Path) -> Settings:
    """The settings in a TOML file or a shipped config."""
    shipped = shipped_configs()
    path = shipped.get(str(config), Path(config))
    try:
        # Some editors put a byte order mark before UTF-8.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        offer = f"{', '.join(shipped)}{did_you_mean(config, shipped)}"
        raise ConfigError(
            f"no config {str(config)!r}: not a file, and not one of {offer}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config {path}: {error}") from None
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
