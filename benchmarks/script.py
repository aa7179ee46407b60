"""What the scripts of this folder share."""

import argparse
import atexit
import json
import os
import select
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

Row = dict[str, Any]


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """One whose help is the script's own docstring, lines as they are.

    From here on the script ends without a word where nobody reads on: `python SCRIPT | head`.
    """
    sys.excepthook = _said_unless_unread
    atexit.register(_unread)
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _said_unless_unread(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if kind is BrokenPipeError and _unread():
        return
    sys.__excepthook__(kind, error, trace)


def _unread() -> bool:
    """Whether whoever read what is printed has gone; then the rest goes nowhere."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def rows(run: Path) -> list[Row]:
    """The rounds of a run."""
    lines = (run / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def total(rounds: list[Row], column: str) -> float:
    return sum(row[column] for row in rounds)


def report(text: str, file: Path | None) -> None:
    """Print a table, and write it if a file is given."""
    print(text)
    if file:
        file.write_text(text)


def keep(row: Row, name: str, write: Path | None) -> None:
    """Print what was found, and put it beside what else the file holds."""
    print(json.dumps({name: row}), flush=True)
    if write is None:
        return
    found = json.loads(write.read_text()) if write.exists() else {}
    found[name] = row
    write.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
