"""`fedwsq inspect`: what is in a message."""

import argparse
from pathlib import Path

from fedwsq.cli.start import later


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "inspect",
        help="print what is in a message",
        description="Check a message and print its fields. Runs keep theirs with --keep-messages.",
        epilog="example:\n  fedwsq run rounds=1 --keep-messages --out runs/look\n"
        "  fedwsq inspect runs/look/messages/round-1-client-1.fwsq\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("message", type=Path, metavar="MESSAGE", help="a file with one message")
    parser.set_defaults(main=later("fedwsq.cli.work.inspect"))
