"""Config files and run directories can name code; nobody runs it before somebody vouches for it."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedwsq.core.errors import ConfigError

HELD = "fedwsq.runs.here:"  # objects of a program, which no other process has: it says so itself


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the code outside the package, module:name, that a file or a directory names",
    )


@contextmanager
def trusting(config: str | Path, overrides: Iterable[str], trust: bool) -> Iterator[None]:
    """Around the making of a plan: code that `config` names is imported once it is vouched for."""
    from fedwsq.plan import code_named, parse_overrides, read_config
    from fedwsq.plan.merge import merge

    typed = parse_overrides(overrides)
    with vouching(config, merge(read_config(config), typed), code_named(typed), trust):
        yield


@contextmanager
def vouching(
    source: str | Path, settings: object, own: Sequence[str], trust: bool
) -> Iterator[None]:
    """Within, code is imported that a source's settings name, or `own`.

    The latter was typed by whoever gives the command, and needs no question.
    """
    if trust:
        yield
        return
    from fedwsq.plan import code_named, importing_only

    named = code_named(settings)
    foreign = [name for name in named if name not in own and not name.startswith(HELD)]
    if foreign:
        _require_yes(f"{source} names code outside the package: {', '.join(foreign)}")
    with importing_only([*own, *named]):
        yield


def _require_yes(said: str) -> None:
    """Ask on a terminal; elsewhere there is nobody to ask."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{said}\nIt runs with all that you may do. Run it? [y/N] ", end="", file=sys.stderr)
        if input().strip().lower() in ("y", "yes"):
            return
    raise ConfigError(f"{said}; look at it, and give --trust to run it")
