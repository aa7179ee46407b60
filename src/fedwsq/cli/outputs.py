"""Files that a command is asked to write."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedwsq.core.errors import ConfigError, disk_is_full

ELSEWHERE = "choose another place with --out"


def require_folder(path: Path, doing: str = "write") -> None:
    """Refuse a file that could not be put there, before anything is computed for it."""
    if not path.parent.is_dir():
        raise ConfigError(f"cannot {doing} {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise ConfigError(f"cannot {doing} {path}: it is a folder; name a file in it")


@contextmanager
def writing(path: Path, way_out: str = ELSEWHERE) -> Iterator[None]:
    """Around what is written in the end: of a failure it says which file, why, and what to do."""
    try:
        yield
    except OSError as error:
        if disk_is_full(error):
            raise  # which is said to everybody in the same words
        why = error.strerror or error
        raise ConfigError(f"cannot write {path}: {why}; {way_out}") from None
