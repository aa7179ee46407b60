"""`fedwsq export`: the rows of a run for other programs."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later

# Written out, since what writes them comes with torch.
FORMS = ("csv", "parquet", "tensorboard")

EXAMPLES = """\
Every round is a row and every measure a column; lists and tables are JSON in a cell.

examples:
  fedwsq export runs/quickstart-1 --to csv
  fedwsq export runs/quickstart-1 --to parquet --out rounds.parquet
  fedwsq export runs/quickstart-1 --to tensorboard && tensorboard --logdir runs
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "export",
        help="the rows of a run as CSV, Parquet or TensorBoard events",
        description="Write the rows of a run as CSV, Parquet or TensorBoard events.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--to", required=True, choices=FORMS, help="the format")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="a file, for TensorBoard a folder (default: in the run directory)",
    )
    parser.set_defaults(main=later("fedwsq.cli.work.export"))
