"""The verbs and their options, and how a command ends."""

import argparse
import sys
from collections.abc import Sequence

from fedwsq.cli import (
    analyze,
    bench,
    compare,
    deploy,
    export,
    fetch,
    figure,
    inspect,
    levels,
    ls,
    partition,
    report,
    resume,
    run,
    sweep,
    table,
    verify,
)
from fedwsq.core.errors import FedwsqError, did_you_mean, disk_is_full
from fedwsq.core.text import printable
from fedwsq.core.version import VERSION

# As `--help` lists them.
VERBS = (
    run,
    resume,
    sweep,
    compare,
    table,
    report,
    figure,
    analyze,
    export,
    verify,
    ls,
    levels,
    inspect,
    fetch,
    partition,
    deploy,
    bench,
)

EXAMPLES = """\
examples:
  fedwsq run                                    \
the quick start: handwritten digits, FedWSQ at 4 bits
  fedwsq run uplink.bits=1 rounds=20            the same, one bit a weight
  fedwsq run cifar10-resnet8 data.root=DIR      a shipped config on your data
  fedwsq resume runs/quickstart-1 rounds=80     go on with a run
  fedwsq sweep method=fedavg,fedwsq seed=0,1,2  several runs, one command
  fedwsq ls configs                             what is there to choose from
"""


def execute(argv: Sequence[str] | None) -> int:
    """Run a command: its exit code. Ctrl-C passes through."""
    parser = build()
    args = parse(parser, argv)
    if not hasattr(args, "main"):
        parser.print_help()
        return 0

    try:
        return int(args.main(args))
    except FedwsqError as error:
        print(f"fedwsq: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"fedwsq: not enough memory: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `fedwsq ls | head`
        sys.stderr.close()
        return 0
    except OSError as error:  # a full disk, a folder without permission
        print(f"fedwsq: {printable(_explained(error, args))}", file=sys.stderr)
        return 2


def _explained(error: OSError, args: argparse.Namespace) -> str:
    if not disk_is_full(error):
        return str(error)
    # An error while writing does not know what was written to.
    place = error.filename or getattr(args, "out", None) or getattr(args, "folder", None)
    where = f" for {place}" if place else ""
    return f"no space left{where}; make room and give the command again"


def build() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedwsq",
        description=(
            "Communication-efficient federated learning: "
            "weight standardization and 1/2/4-bit updates."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fedwsq {VERSION}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for verb in VERBS:
        verb.register(verbs)
    return parser


def _require_verb(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Answer a slip of the finger with the verb that was meant, which argparse does not."""
    names = [verb.__name__.rpartition(".")[2] for verb in VERBS]
    if words and not words[0].startswith("-") and words[0] not in names:
        near = did_you_mean(words[0], names)
        parser.error(f"no command {words[0]!r}; there are {', '.join(names)}{near}")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    _require_verb(parser, sys.argv[1:] if argv is None else argv)
    args, more = parser.parse_known_args(argv)
    if not more:
        return args
    # Overrides may stand after options too, where argparse does not look for them.
    overrides = all("=" in word and not word.startswith("-") for word in more)
    if not overrides or not hasattr(args, "words"):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    args.words += more
    return args
