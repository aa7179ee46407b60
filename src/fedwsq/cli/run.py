"""`fedwsq run`: start a run."""

import argparse
import itertools
from contextlib import suppress
from pathlib import Path

from fedwsq.cli.progress import follow
from fedwsq.plan import load_plan
from fedwsq.report.tensorboard import summary_writer
from fedwsq.runs.run import Run

EXAMPLES = """\
CONFIG is a TOML file or the name of a shipped one (fedwsq ls configs); without it, quickstart.
KEY=VALUE sets any field by its dotted name; the value is TOML or a plain word.

examples:
  fedwsq run
  fedwsq run method=fedavg                                      a method by name (fedwsq ls methods)
  fedwsq run method=fedacg uplink.codec=danuq uplink.bits=1 model.standardize=true
  fedwsq run uplink.bits=1                                      FedWSQ, one bit
  fedwsq run data.name=cifar10 data.root=DIR data.clients=100 model.name=resnet8
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
        "--out", type=Path, metavar="DIR", help="the run directory (default: runs/CONFIG-N)"
    )
    add_machine_options(parser)
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
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write TensorBoard scalars into the directory",
    )
    parser.add_argument(
        "--keep-messages", action="store_true", help="also keep every message that was sent"
    )


def main(args: argparse.Namespace) -> int:
    config, overrides = config_and_overrides(args.words)
    plan = load_plan(config, overrides)
    if args.tensorboard:
        summary_writer()  # is it there? Asked before a directory is made

    folder = args.out or free_folder(Path(config).stem)
    try:
        with Run.create(plan, folder, args.workers, args.device or "auto") as run:
            return follow(run, args.tensorboard, args.keep_messages)
    finally:
        if not args.out:
            with suppress(OSError):  # nothing came of it, so it is empty
                folder.rmdir()
                folder.parent.rmdir()


def config_and_overrides(words: list[str]) -> tuple[str, list[str]]:
    """`[CONFIG] KEY=VALUE ...` in its two parts; the config is the quick start unless given."""
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return "quickstart", words


def free_folder(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that is not there yet, and now is."""
    for number in itertools.count(1):
        folder = Path("runs", f"{name}-{number}")
        # Made at once, not only looked for: another run may be starting.
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("numbers do not end")
