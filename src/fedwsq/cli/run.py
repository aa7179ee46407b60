"""`fedwsq run`: start a run."""

import argparse
from contextlib import ExitStack
from pathlib import Path

from fedwsq.cli.start import loading, saying
from fedwsq.cli.trust import add_trust_option, trusting
from fedwsq.core.errors import ConfigError

# Written out, since what makes them comes with torch.
TRACKERS = {
    "tensorboard": "also write TensorBoard scalars into the directory",
    "wandb": "also log every round to Weights & Biases (WANDB_MODE=offline keeps it here)",
    "mlflow": "also log every round to MLflow (MLFLOW_TRACKING_URI says where)",
}

EXAMPLES = """\
CONFIG is a TOML file or the name of a shipped one (fedwsq ls configs); without it, quickstart.
KEY=VALUE sets any field by its dotted name; the value is TOML or a plain word.
A CONFIG file can name code outside the package, module:name; --trust runs it unasked.

examples:
  fedwsq run
  fedwsq run method=fedavg                                      a method by name (fedwsq ls methods)
  fedwsq run method=fedacg uplink.codec=danuq uplink.bits=1 model.standardize=true
  fedwsq run uplink.bits=1                                      FedWSQ, one bit
  fedwsq run data.name=cifar10 data.root=DIR data.clients=100 model.name=resnet8
  fedwsq run cifar10 --dry-run                                  what it would be, and cost
  fedwsq run my.toml seed=3 --out runs/mine --workers 2
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "run",
        help="start a run",
        description="Start a federated run and keep everything about it in a directory.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="[CONFIG] KEY=VALUE", help="a config, then overrides"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="the run directory, new or empty (default: runs/CONFIG-N)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="try one batch, print the resolved plan and what it would cost, and stop",
    )
    add_machine_options(parser)
    add_trust_option(parser)
    parser.set_defaults(main=main)


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Options that say where a run computes, never what it computes."""
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes (default: as many as cores)"
    )
    parser.add_argument(
        "--device",
        default=None,
        metavar="D",
        help="cpu, cuda or cuda:0 (default: a GPU if there is one)",
    )
    add_tracker_options(parser)
    parser.add_argument(
        "--keep-messages", action="store_true", help="also keep every message that was sent"
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="one process; stop at the first failure, with its traceback",
    )


def add_tracker_options(parser: argparse.ArgumentParser) -> None:
    """Where rounds go besides the run directory."""
    for name, what in TRACKERS.items():
        parser.add_argument(
            f"--{name}", action="append_const", const=name, dest="trackers", help=what
        )
    parser.set_defaults(trackers=[])


def processes(args: argparse.Namespace) -> int:
    """How many workers the options ask for, 0 for as many as cores."""
    if not args.debug:
        return int(args.workers)
    if args.workers > 1:
        raise ConfigError(f"--debug runs in one process, and --workers is {args.workers}: drop one")
    return 1


def main(args: argparse.Namespace) -> int:
    with loading():
        from fedwsq.cli.forecast import print_forecast
        from fedwsq.cli.progress import follow
        from fedwsq.plan import load_plan
        from fedwsq.report.trackers import require
        from fedwsq.runs import Run, forecast
        from fedwsq.runs.directory import folder_for, require_named

    require_named(args.out)
    config, overrides = config_and_overrides(args.words)
    with trusting(config, overrides, args.trust):
        plan = load_plan(config, overrides)
    if args.dry_run:
        print_forecast(*forecast(plan, args.workers, args.device or "auto"))
        return 0
    for tracker in args.trackers:
        require(tracker)  # is it there? Asked before a directory is made

    with ExitStack() as stack:
        folder = stack.enter_context(folder_for(args.out, Path(config).stem))
        with saying(f"loading {plan.data.load.name}, building {plan.model.build.name} ..."):
            opened = Run.create(plan, folder, processes(args), args.device or "auto")
            run = stack.enter_context(opened)
        return follow(run, args.trackers, args.keep_messages, args.debug)


def config_and_overrides(words: list[str]) -> tuple[str, list[str]]:
    """`[CONFIG] KEY=VALUE ...` in its two parts; the config is the quick start unless given."""
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return "quickstart", words
