"""`fedwsq bench`: measure the hot paths on this machine."""

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedwsq.bench import GROUPS
from fedwsq.bench.figure import Figure, as_json, machine


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "bench",
        help="measure codecs, training steps, rounds, memory and scale on this machine",
        description=(
            "Measure the hot paths on this machine. Every figure is a ratio within the run (against memcpy, a bare "
            "PyTorch loop, plain torch, 100 clients), the median of five with its spread."
        ),
        epilog="examples:\n  fedwsq bench codec\n  fedwsq bench all --json bench.json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "group", nargs="?", default="all", choices=[*GROUPS, "all"], help="what to measure (default: all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Measure, print a table, and say which bars were met."""
    console, found = Console(highlight=False, markup=False, emoji=False), list[Figure]()
    about = machine()
    console.print(f"{about['cpu']}, {about['cores']} cores, torch {about['torch']}")
    for name in GROUPS if args.group == "all" else [args.group]:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        found += GROUPS[name]()
    console.print(_table(found))
    if args.json:
        about["date"] = time.strftime("%Y-%m-%d")
        args.json.write_text(json.dumps({"machine": about, "figures": as_json(found)}, indent=2) + "\n")
    return 0


def _table(figures: list[Figure]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("figure", "median", "spread", "must reach", "", ""):
        table.add_column(name)
    for each in figures:
        bar = "" if each.must is None else f"{'>=' if each.better == 'higher' else '<='} {each.must:g} {each.unit}"
        met = {None: "", True: "yes", False: "NO"}[each.reached]
        spread = f"{each.low:.3g} to {each.high:.3g}"
        table.add_row(each.name, f"{each.value:.3g} {each.unit}", spread, bar, met, each.note)
    return table
