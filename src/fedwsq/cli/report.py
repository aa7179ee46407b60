"""`fedwsq report`: runs as one page."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later

EXAMPLES = """\
RUNS are run directories, or folders that hold some, as a sweep's does, three folders down at most.
The page is one file that needs no network: send it to anybody. Runs that differ in nothing but
their seed are one line.

examples:
  fedwsq report runs/quickstart-1
  fedwsq report runs/mine runs/other --out page.html
  fedwsq report runs --watch                    follow runs as they go, in a browser here
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "report",
        help="make one page of runs: curves, tables, settings",
        description="Make one self-contained page of runs, or serve one that follows them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="run directories")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html)")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="serve the page to this machine and follow runs that are going; Ctrl-C ends it",
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="for --watch (default: any free one)"
    )
    parser.set_defaults(main=later("fedwsq.cli.work.report"))
