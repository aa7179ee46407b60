"""`fedwsq resume`: go on with a run."""

import argparse
from pathlib import Path

from fedwsq.cli.progress import follow
from fedwsq.cli.run import add_machine_options
from fedwsq.core.errors import ConfigError
from fedwsq.plan.build import PLACES, parse_override
from fedwsq.runs.run import Run

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
    given = dict(map(parse_override, args.words))
    for key in given:
        if key not in ("rounds", *PLACES):
            raise ConfigError(
                f"{key} cannot change on resume, only rounds and where files lie ({', '.join(PLACES)}) can; "
                "start another run for that"
            )
    rounds = given.pop("rounds", None)
    if rounds is not None and (type(rounds) is not int or rounds < 1):
        raise ConfigError(f"rounds is {rounds!r}, must be a whole number of at least 1")
    with Run.resume(args.folder, rounds, args.workers, args.device, given) as run:
        return follow(run, args.tensorboard, args.keep_messages)
