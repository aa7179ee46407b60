"""`fedwsq bench`: measure the hot paths on this machine."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later

# Written out, since what measures them comes with torch.
GROUPS = ("codec", "fold", "step", "round", "population", "start")


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "bench",
        help="measure codecs, training steps, rounds, memory and scale on this machine",
        description=(
            "Measure the hot paths on this machine. Every figure is a ratio within the run "
            "(against memcpy, a bare PyTorch loop, plain torch, 100 clients): "
            "the median of five or more, with its spread."
        ),
        epilog="`all` takes about ten minutes on two idle cores.\n\nexamples:\n"
        "  fedwsq bench codec\n  fedwsq bench all --json bench.json --plot scale.png\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "group",
        nargs="?",
        default="all",
        choices=[*GROUPS, "all"],
        help="what to measure (default: all)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures here, group by group"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw cost over population and cohort: .png, .pdf...",
    )
    parser.set_defaults(main=later("fedwsq.cli.work.bench"))
