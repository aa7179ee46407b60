"""`fedwsq resume`: go on with a run."""

import argparse
from pathlib import Path

from fedwsq.cli.progress import follow
from fedwsq.cli.run import add_machine_options
from fedwsq.plan import parse_override
from fedwsq.runs import Run

EXAMPLES = """\
Goes on from the last whole checkpoint, to the same weights as if the run had never stopped.

examples:
  fedwsq resume runs/quickstart-1
  fedwsq resume runs/quickstart-1 rounds=80
  fedwsq resume runs/cifar10-1 data.root=/mnt/data
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "resume",
        help="go on with a run",
        description="Go on with a run that was stopped, killed, or should have more rounds.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the run directory")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="KEY=VALUE",
        help="rounds=N: run until this round; data.root=DIR and the like: where files lie now",
    )
    add_machine_options(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Resume it."""
    changes = dict(map(parse_override, args.words))
    with Run.resume(args.folder, changes, args.workers, args.device) as run:
        return follow(run, args.tensorboard, args.keep_messages)
