"""`fedwsq compare`: runs side by side."""

import argparse
import os
import sys
from collections.abc import Sequence

from rich.table import Table

from fedwsq.cli.progress import plain_console
from fedwsq.core.text import printable
from fedwsq.report.compare import Comparison, Line, compare
from fedwsq.report.estimate import Estimate
from fedwsq.report.layout import Row, laid_out
from fedwsq.runs.lines import human_bytes, times_less
from fedwsq.runs.reading import read_runs

WIDE = 240  # characters: a file has no edge at which lines must be broken


def main(args: argparse.Namespace) -> int:
    found = compare(read_runs(args.runs), args.target, args.rounds)
    notes = [printable(text) for text in (*map("flag: {}".format, found.flags), *found.left_out)]
    parts = [accuracies(found), traffic(found)]
    if args.format == "csv":
        parts = [exact(found)]
    if args.format:
        print("\n".join(laid_out(head, rows, args.format) for head, *rows in parts), end="")
        for note in notes:
            print(note, file=sys.stderr)
        return 0

    console = plain_console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    for head, *rows in parts:
        console.print(in_columns(head, rows))
    for note in notes:
        console.print(note, style="yellow")
    return 0


def in_columns(head: Row, rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(head[0], overflow="fold")
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def accuracies(found: Comparison) -> list[Row]:
    rows: list[Row] = [["runs", "seeds", "last", "smoothed", "against the best", "best"]]
    for line in found.lines:
        against = behind(line.behind)
        figures = [percent(line.last), percent(line.smoothed), against, percent(line.best)]
        rows.append([line.group.label, str(len(line.group.runs)), *figures])
    return rows


def traffic(found: Comparison) -> list[Row]:
    goal = f"to {100 * found.target.accuracy:.2f}"
    if found.target.group is not None:
        goal += f" ({found.target.group.label})"
    rows: list[Row] = [["runs", "up", "down", "total", goal, "times fewer", "seconds"]]
    for line in found.lines:
        sent = [line.uplink_bytes, line.downlink_bytes, line.total_bytes]
        more = [reached(line), fewer(line.times_fewer), f"{line.seconds:.0f}"]
        rows.append([line.group.label, *map(human_bytes, sent), *more])
    return rows


def exact(found: Comparison) -> list[Row]:
    """Numbers for a program: accuracies from 0 to 1, bytes, half widths of intervals."""
    rows: list[Row] = []
    for line in found.lines:
        figures: dict[str, object] = {"runs": line.group.label, "seeds": len(line.group.runs)}
        for name in ("last", "smoothed", "best", "behind"):
            value: Estimate | None = getattr(line, name)
            figures[name] = value and value.mean
            figures[f"{name}_half"] = value and value.half
        figures["uplink_bytes"] = line.uplink_bytes
        figures["downlink_bytes"] = line.downlink_bytes
        figures["target"] = found.target.accuracy
        figures["reached_by"] = line.reached.runs
        figures["bytes_to_target"] = line.reached.bytes and line.reached.bytes.mean
        figures["times_fewer"] = line.times_fewer
        figures["seconds"] = line.seconds
        rows = rows or [list(figures)]
        rows.append(["" if value is None else str(value) for value in figures.values()])
    return rows


def percent(value: Estimate | None) -> str:
    """`61.23 ± 0.80`; one seed has no interval."""
    if value is None:
        return ""
    if value.half is None:
        return f"{100 * value.mean:.2f}"
    return f"{100 * value.mean:.2f} ± {100 * value.half:.2f}"


def behind(value: Estimate | None) -> str:
    """`-2.31 ± 0.80`, or in words when nobody can tell."""
    if value is None:
        return "best"
    if value.half is None:
        return f"{100 * value.mean:+.2f}, one seed"
    text = f"{100 * value.mean:+.2f} ± {100 * value.half:.2f}"
    return text if value.clear else f"{text}, noise"


def fewer(factor: float | None) -> str:
    """`2.0` under a heading that says `times fewer`, or `25 % more`."""
    if factor is None:
        return ""
    return f"{factor:.1f}" if factor >= 1 else times_less(factor)


def reached(line: Line) -> str:
    found = line.reached
    if found.bytes is None:
        return "not reached"
    text = human_bytes(found.bytes.mean)
    return text if found.runs == found.of else f"{text} ({found.runs} of {found.of})"
