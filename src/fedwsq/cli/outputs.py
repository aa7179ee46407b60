"""Files that a command is asked to write."""

from pathlib import Path

from fedwsq.core.errors import ConfigError


def require_folder(path: Path, doing: str = "write") -> None:
    """Refuse a file that could not be put there, before anything is computed for it."""
    if not path.parent.is_dir():
        raise ConfigError(f"cannot {doing} {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise ConfigError(f"cannot {doing} {path}: it is a folder; name a file in it")
