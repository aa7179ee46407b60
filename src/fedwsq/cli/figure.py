"""`fedwsq figure`: figures for papers."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later
from fedwsq.cli.trust import add_trust_option

# Written out, since what draws them comes with torch.
KINDS = ("curves", "bits", "levels", "split")
ACROSS = ("bytes", "rounds", "time")

EXAMPLES = """\
curves   accuracy against bytes, rounds or simulated time; runs on other data, splits, clients or
         models get a panel of their own, seeds become a band
bits     smoothed accuracy against bits a parameter, with 95 % intervals over seeds
levels   where codecs have their levels, over the histogram of real updates; of one run that sent
         float32 and kept its messages, with record.rounds=[1, 10] or --keep-messages
split    who holds what, clients by classes; of one run, or of a config and KEY=VALUE as for
         `fedwsq run`

examples:
  fedwsq figure curves runs/mine-sweep --out curves.pdf
  fedwsq figure curves runs/mine-sweep --against rounds --smoothed --out convergence.svg
  fedwsq figure bits runs/mine-sweep --out bits.png
  fedwsq run method=fedws record.rounds=[1] --out runs/kept
  fedwsq figure levels runs/kept --bits 4 --out levels.pdf
  fedwsq figure split cifar10 data.partition.alpha=0.05 --out split.svg
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "figure",
        help="draw runs for a paper: .pdf, .svg or .png",
        description="Draw a figure of runs for a paper.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS, help="what to draw")
    parser.add_argument(
        "runs", nargs="+", metavar="RUNS", help="run directories, or folders of them"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="ends in .pdf, .svg or .png"
    )
    parser.add_argument(
        "--against", choices=ACROSS, default="bytes", help="of curves (default: bytes, both ways)"
    )
    parser.add_argument(
        "--smoothed", action="store_true", help="of curves: the moving average of accuracy"
    )
    parser.add_argument("--bits", type=int, default=4, metavar="N", help="of levels (default: 4)")
    parser.add_argument(
        "--codecs",
        default="nf,fp,danuq",
        metavar="A,B",
        help="of levels: whose (default: nf,fp,danuq)",
    )
    add_trust_option(parser)
    parser.set_defaults(main=later("fedwsq.cli.work.figure"))
