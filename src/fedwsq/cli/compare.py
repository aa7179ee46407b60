"""`fedwsq compare`: runs side by side."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later

# Written out, since what lays tables out comes with torch.
FORMATS = ("md", "latex", "csv")

EXAMPLES = """\
Runs that differ in nothing but their seed are one line: means with 95 % intervals over seeds.
`against the best` is the difference in smoothed accuracy; one that chance would give is called
noise. `to target` is all bytes, up and down, until the smoothed accuracy reaches the target and
stays there. Runs that should not be compared are flagged; only finished ones are, or with --rounds
all that got so far.

examples:
  fedwsq compare runs/mine-sweep
  fedwsq compare runs/a runs/b --target 0.6
  fedwsq compare runs/mine-sweep --target fedavg --rounds 50
  fedwsq compare runs/mine-sweep --format md > results.md
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "compare",
        help="compare runs: accuracy and bytes over seeds",
        description="Compare runs: accuracy over seeds, bytes, and bytes to a target accuracy.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="run directories, or folders of them"
    )
    parser.add_argument(
        "--target",
        default="",
        metavar="T",
        help="an accuracy (0.6), or a group whose last ten evaluations are it "
        "(default: the group that came to least)",
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="as the runs were after N rounds (default: all)"
    )
    parser.add_argument("--format", choices=FORMATS, help="for a file (default: for a terminal)")
    parser.set_defaults(main=later("fedwsq.cli.work.compare"))
