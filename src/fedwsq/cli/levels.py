"""`fedwsq levels`: the quantization levels of DANUQ and of every other codec that has some."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later

# Written out, since codecs come with torch.
KINDS = ("paper", "optimal", "lloyd-max", "even")


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "levels",
        help="print a codec's levels, with their error on the normal distribution",
        description=(
            "Print a codec's levels, and their expected squared error, bias and entropy on N(0, 1)."
        ),
        epilog="examples:\n  fedwsq levels 4\n  fedwsq levels 4 --kind optimal\n"
        "  fedwsq levels 2 --kind lloyd-max\n  fedwsq levels 3 --codec uq --plot uq3.png\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "bits", type=int, metavar="BITS", help="1, 2 or 4; 1 to 8 for the kinds that are solved for"
    )
    parser.add_argument("--codec", default="danuq", help="whose levels (default: danuq)")
    parser.add_argument(
        "--kind",
        help=f"of danuq: {', '.join(KINDS)} (default: paper); some others have theirs",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw them with the normal density: .png, .pdf..."
    )
    parser.set_defaults(main=later("fedwsq.cli.work.levels"))
