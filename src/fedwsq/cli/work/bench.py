"""`fedwsq bench`: measure the hot paths on this machine."""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedwsq.bench import GROUPS
from fedwsq.bench.figure import Figure, as_json, machine
from fedwsq.bench.population import draw
from fedwsq.cli.outputs import require_folder
from fedwsq.cli.plot import blank, save
from fedwsq.core.errors import ConfigError
from fedwsq.core.files import write_atomically

FILE_WIDTH = 160  # room for whole lines
REACHED = {None: "", True: "yes", False: "NO"}


def main(args: argparse.Namespace) -> int:
    """Measure, print a table, and say which bars were met."""
    groups = list(GROUPS) if args.group == "all" else [args.group]
    # What cannot be written is refused before ten minutes are spent on it.
    if args.plot and "population" not in groups:
        raise ConfigError(
            f"--plot draws what `population` measures, not `{args.group}`; use population or all"
        )
    picture = blank(args.plot, 8, 5) if args.plot else None
    if args.json:
        require_folder(args.json)

    figures = _measure(groups, args.json)
    if picture is not None:
        draw(picture, figures)
        picture.suptitle("cost of a round, by how many clients there are and are asked")
        save(picture, args.plot)
    return 0


def _measure(groups: list[str], file: Path | None) -> list[Figure]:
    """The figures of these groups, printed, and written to a file that grows group by group."""
    about = {"date": time.strftime("%Y-%m-%d"), **machine()}
    print(f"{about['cpu']}, {about['cores']} cores, torch {about['torch']}")
    found: list[Figure] = []
    try:
        for name in groups:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            found += GROUPS[name]()
            if file:
                write_atomically(file, as_json(about, found))
    finally:
        # Interrupted, there is something to show all the same.
        width = None if sys.stdout.isatty() else FILE_WIDTH
        console = Console(highlight=False, markup=False, emoji=False, width=width)
        console.print(_table(found))
    return found


def _table(figures: list[Figure]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("figure", "median", "spread", "must reach", "", ""):
        table.add_column(name)
    for each in figures:
        table.add_row(
            each.name,
            f"{each.value:.3g} {each.unit}",
            f"{each.low:.3g} to {each.high:.3g}",
            each.bar,
            REACHED[each.reached],
            each.note,
        )
    return table
