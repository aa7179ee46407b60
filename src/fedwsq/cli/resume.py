"""`fedwsq resume`: go on with a run."""

import argparse
from contextlib import ExitStack, nullcontext
from pathlib import Path

from fedwsq.cli.run import add_machine_options, processes
from fedwsq.cli.start import loading, saying
from fedwsq.cli.trust import add_trust_option, trusting

EXAMPLES = """\
Goes on from the last whole checkpoint, to the same weights as if the run had never stopped.
A run directory can name code outside the package, module:name; --trust runs it unasked.

examples:
  fedwsq resume runs/quickstart-1
  fedwsq resume runs/quickstart-1 rounds=80
  fedwsq resume runs/cifar10-1 data.root=/mnt/data
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
        default=[],  # without one argparse calls these words required, too
        metavar="KEY=VALUE",
        help="rounds=N: run until this round; data.root=DIR and the like: where files lie now",
    )
    add_machine_options(parser)
    add_trust_option(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    with loading():
        from fedwsq.cli.progress import follow
        from fedwsq.plan import parse_overrides
        from fedwsq.runs import Run

    changes = parse_overrides(args.words)
    config = args.folder / "config.toml"
    # Without one it is no run, which is said in better words later.
    vouched = trusting(config, (), args.trust) if config.exists() else nullcontext()
    with ExitStack() as stack, vouched:
        with saying("loading the last checkpoint and the data ..."):
            opened = Run.resume(args.folder, changes, processes(args), args.device)
            run = stack.enter_context(opened)
        return follow(run, args.trackers, args.keep_messages, args.debug)
