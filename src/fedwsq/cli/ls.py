"""`fedwsq ls`: what there is to choose from."""

import argparse

from fedwsq.cli.start import later

# Written out, since the tables themselves come with torch.
KINDS = (
    "methods",
    "algorithms",
    "codecs",
    "bits",
    "channels",
    "combines",
    "models",
    "standardizations",
    "datasets",
    "partitions",
    "server-optimizers",
    "optimizers",
    "criteria",
    "metrics",
    "configs",
    "grids",
)


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "ls",
        help="list methods, algorithms, codecs, models, data sets, configs",
        description="List what there is to choose from, with its settings and their defaults.",
        epilog="examples:\n  fedwsq ls\n  fedwsq ls codecs\n  fedwsq ls codecs --error\n"
        "  fedwsq ls configs\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, help="one kind only (default: all)")
    parser.add_argument(
        "--error", action="store_true", help="with codecs: measure what each loses, sends and takes"
    )
    parser.add_argument(
        "--numel",
        type=int,
        default=2**18,
        help="with --error: elements coded (default: %(default)s)",
    )
    parser.set_defaults(main=later("fedwsq.cli.work.ls"))
