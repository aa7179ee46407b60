"""The files of a run directory: who may write there, and its rows."""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from fedwsq.core.errors import RunError
from fedwsq.core.files import try_lock, without_links, write_atomically
from fedwsq.core.text import read_text
from fedwsq.federation.record import RoundRecord

ROWS = "rounds.jsonl"
CLASSES = "classes.json"  # their names, where they have some
MESSAGES = "messages"
MAX_ROWS_BYTES = 2**30  # some hundred thousand rounds


class FolderInUse(RunError):
    """Another process has it, and will let go when it is done."""


def require_free(folder: Path) -> None:
    if (folder / "config.toml").exists():
        raise RunError(
            f"{folder} already holds a run; go on with it (fedwsq resume) or choose another --out"
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
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
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
