"""`fedwsq export`: the rows of a run for other programs."""

import argparse
import sys

from fedwsq.cli.outputs import require_folder, writing
from fedwsq.core.errors import RunError
from fedwsq.report.export import export
from fedwsq.runs.reading import SIGNS, is_run, read_run


def main(args: argparse.Namespace) -> int:
    if not is_run(args.run):
        raise RunError(f"{args.run} is not a run directory: it has none of {', '.join(SIGNS)}")
    if args.out and args.to != "tensorboard":
        require_folder(args.out)
    run = read_run(args.run)
    with writing(args.out or args.run):
        written = export(run, args.to, args.out)
    print(f"{len(run.rows)} rows are in {written}")
    if run.lost_rows:
        said = f"warning: rows of {run.folder} that are lost or damaged: {run.lost_rows}"
        print(said, file=sys.stderr)
    return 0
