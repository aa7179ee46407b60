"""What the scripts of this folder share."""

import argparse
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """One whose help is the script's own docstring, lines as they are."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


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
