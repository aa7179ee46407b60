"""`fedwsq export`: the rows of a run for other programs."""

import argparse
import sys

from fedwsq.cli.outputs import require_folder
from fedwsq.core.errors import RunError
from fedwsq.report.export import export
from fedwsq.runs.reading import SIGNS, is_run, read_run


def main(args: argparse.Namespace) -> int:
    if not is_run(args.run):
        raise RunError(f"{args.run} is not a run directory: it has none of {', '.join(SIGNS)}")
    if args.out and args.to != "tensorboard":
        require_folder(args.out)
    run = read_run(args.run)
    print(f"{len(run.rows)} rows are in {export(run, args.to, args.out)}")
    lost = run.damaged_rows + run.missing_rows
    if lost:
        print(f"warning: {lost} rows of {run.folder} are lost or damaged", file=sys.stderr)
    return 0
