"""`fedwsq table`: runs in the shape of one of the paper's tables."""

import argparse
from pathlib import Path

from fedwsq.cli.compare import FORMATS
from fedwsq.cli.start import later

EXAMPLES = """\
A cell is the smoothed accuracy in percent after the last round, the mean over seeds with its 95 %
interval, then the published number and the difference: 84.12 ± 0.31 (86.84, -2.72). A cell that was
not run has the published number alone. A run belongs where its method, bits, data and split say;
other settings may differ (fewer rounds, a smaller model), and are named below the table.

examples:
  fedwsq sweep paper-table-2-small --out runs/two
  fedwsq table runs/two --like paper-table-2
  fedwsq table runs/two --like paper-table-2 --format latex > table-2.tex
  fedwsq table runs/two --like paper-table-2 --format csv > table-2.csv     a line for each cell
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "table",
        help="runs in the shape of one of the paper's tables, beside its numbers",
        description="Show runs in the shape of one of the paper's tables, beside its numbers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="run directories, or folders of them"
    )
    parser.add_argument(
        "--like",
        required=True,
        metavar="TABLE",
        help="paper-table-1 to paper-table-5, or a file made like those",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="md", help="Markdown, LaTeX or CSV (default: md)"
    )
    parser.set_defaults(main=later("fedwsq.cli.work.table"))
