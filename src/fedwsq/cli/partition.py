"""`fedwsq partition`: who holds which examples."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later
from fedwsq.cli.trust import add_trust_option

EXAMPLES = """\
CONFIG and KEY=VALUE are those of `fedwsq run`; the split shown is the one that such a run has.
A file written with --out is used with data.partition=file data.partition.path=FILE.
--import reads the split files of the FedACG and FedWSQ repositories: text with a Python dict, \
client -> indices. With a
config or a KEY=VALUE they are held against its data.

examples:
  fedwsq partition
  fedwsq partition data.partition.alpha=0.05 data.clients=20 --plot split.png
  fedwsq partition cifar10 data.root=DIR data.partition=shards --out split.json
  fedwsq partition --import dirichlet0.3_clients100.txt --out split.json
  fedwsq partition cifar10 data.root=DIR --import dirichlet0.01_clients100.txt --drop-repeats \
--out split.json
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "partition",
        help="show, save or import a split of the data over clients",
        description="Show how a plan's data is split over its clients: sizes, skew, and a picture.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="[CONFIG] KEY=VALUE", help="a config, then overrides"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the split as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw clients by classes: .png, .svg or .pdf"
    )
    parser.add_argument(
        "--import",
        type=Path,
        dest="imported",
        metavar="FILE",
        help="a published split in place of the plan's own",
    )
    repeats = parser.add_mutually_exclusive_group()
    for choice, what in {"keep": "as they are", "drop": "with the first client only"}.items():
        repeats.add_argument(
            f"--{choice}-repeats",
            dest="repeats",
            action="store_const",
            const=choice,
            default="refuse",
            help=f"take indices that an imported file gives out again {what}",
        )
    add_trust_option(parser)
    parser.set_defaults(main=later("fedwsq.cli.work.partition"))
