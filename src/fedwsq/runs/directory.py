"""The files of a run directory: who may write there, and its rows."""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.core.files import try_lock, without_links, write_atomically
from fedwsq.core.text import read_text
from fedwsq.federation.record import RoundRecord
from fedwsq.runs.failures import ERROR

CONFIG = "config.toml"
ROWS = "rounds.jsonl"
CLASSES = "classes.json"  # their names, where they have some
MESSAGES = "messages"
MAX_ROWS_BYTES = 2**30  # some hundred thousand rounds
LOCK = ".lock"
CLAIM = ".sweep"  # the lock of whoever works on a cell; a run's own is taken later
STARTING = ".starting"  # there until the config is: a start that was killed before is no run
BEGINNING = ("manifest.json", "checkpoints")  # what a start writes before the config
# Of rounds that were run.
RESULTS = (ROWS, "receipt.json", "summary.json", "best.safetensors", "model.safetensors")
# What may be there before a run: locks, why an earlier start failed, a given model's weights.
BEFORE = (LOCK, CLAIM, ERROR, "start.safetensors")


class FolderInUse(RunError):
    """Another process has it, and will let go when it is done."""


def require_free(folder: Path) -> None:
    """Refuse a folder that holds a run, whatever is left of it, or anything of somebody else's."""
    try:
        names = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return  # it will be made, or refused, then
    if CONFIG in names:
        raise RunError(
            f"{folder} already holds a run; go on with it (fedwsq resume) or choose another --out"
        )
    if lacks_config(folder):
        raise RunError(f"{folder} already holds a run, and {lost_config(folder)}")
    others = sorted(name for name in names if not _is_before(name))
    if others and STARTING not in names:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise RunError(f"{folder} is not empty: it holds {others[0]}{more}; choose a new folder")


def lacks_config(folder: Path) -> bool:
    """Whether a run has lost its config; a start that came to nothing never had one."""
    # Asked first: a start that is going on has its config before this is gone.
    began = (folder / STARTING).exists()
    if (folder / CONFIG).exists():
        return False
    signs = RESULTS if began else (*BEGINNING, *RESULTS)
    return any((folder / name).exists() for name in signs)


def lost_config(folder: Path) -> str:
    """What is wrong with a run that has no config, and what to do about it."""
    return (
        f"its {CONFIG} is missing; put it back to go on with it (fedwsq resume {folder}), or "
        "choose another --out for a new run"
    )


def _is_before(name: str) -> bool:
    half_written = name.startswith(".") and name.endswith(".tmp")
    return name in BEFORE or half_written


def require_named(out: str | Path | None) -> None:
    """Refuse "", what a shell makes of a variable that is not set: it would be where we are."""
    if out is not None and not str(out).strip():
        raise ConfigError(
            "out is empty; name a folder, or give no out for one in runs "
            "(is a variable of the shell not set?)"
        )


def free_folder(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that is not there yet, and now is."""
    for number in itertools.count(1):
        folder = Path("runs", f"{name}-{number}")
        # Made at once, not only looked for: another run may be starting.
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("numbers do not end")


@contextmanager
def folder_for(out: str | Path | None, name: str) -> Iterator[Path]:
    """`out`, or a numbered folder of its own, which goes again when nothing came of it."""
    require_named(out)
    folder = free_folder(name) if out is None else Path(out)
    try:
        yield folder
    finally:
        if out is None:
            with suppress(OSError):  # it holds something
                folder.rmdir()
                folder.parent.rmdir()


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create {folder}: {error.strerror}") from None


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the directory: two processes must not write to one run."""
    try:
        file = open(folder / name, "a", opener=without_links)  # noqa: SIM115
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from None
    with file:
        if not try_lock(file):
            raise FolderInUse(
                f"{folder} is in use by another process; choose another --out or wait for it"
            )
        yield


def model_before(folder: Path, number: int) -> Path:
    """Where a run keeps the model before a round whose messages it keeps."""
    return folder / MESSAGES / f"round-{number}-before.safetensors"


def append_row(rows: TextIO, record: RoundRecord) -> None:
    """A row is on disk before anything that builds on it."""
    rows.write(record.line())
    rows.flush()
    os.fsync(rows.fileno())
    os.stat(rows.name)  # a file that was removed takes rows all the same


def read_rows(folder: Path) -> list[RoundRecord]:
    """All rows; a last line that was cut short is left out."""
    path = folder / ROWS
    if not path.exists():
        return []
    found: list[RoundRecord] = []
    try:
        text = read_text(path, MAX_ROWS_BYTES, errors="replace")
    except ValueError as error:
        raise RunError(f"{path} cannot be read: {error}; move it away to go on without") from None
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            continue
        try:
            found.append(RoundRecord.parse(line))
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"{path}, line {number}, is damaged ({error}); "
                "remove the line to go on without that row"
            ) from None
    return found


def rewind(folder: Path, last: int) -> tuple[list[RoundRecord], str | None]:
    """Drop rows after the checkpoint of round `last`; a warning says if earlier ones are gone."""
    kept = [record for record in read_rows(folder) if record.round <= last]
    write_rows(folder, kept)
    if [record.round for record in kept] == list(range(1, last + 1)):
        return kept, None
    return kept, (
        f"{folder / ROWS} lacks rows of rounds 1 to {last}: totals of bytes and seconds will be "
        "short"
    )


def write_rows(folder: Path, records: Sequence[RoundRecord]) -> None:
    text = "".join(record.line() for record in records)
    write_atomically(folder / ROWS, text.encode())
