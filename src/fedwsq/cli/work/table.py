"""`fedwsq table`: runs in the shape of one of the paper's tables."""

import argparse
import sys

from fedwsq.core.text import printable
from fedwsq.plan import importing_only
from fedwsq.plan.published import published_table
from fedwsq.report.table import fill
from fedwsq.runs.reading import read_runs


def main(args: argparse.Namespace) -> int:
    with importing_only(()):  # a table in a file could name code, and no table needs any
        table = published_table(args.like)
        filled = fill(table, read_runs(args.runs))
    print(filled.text(args.format), end="")
    # Beside the table, not in it: it may be on its way into a file.
    for note in (f"published: {table.source}", *filled.notes):
        print(printable(note), file=sys.stderr)
    return 0
