"""`fedwsq ls`: what there is to choose from."""

import argparse
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fedwsq.algorithms import ALGORITHMS, SERVER_OPTIMIZERS
from fedwsq.codecs import BITS, CODECS
from fedwsq.config import shipped_configs
from fedwsq.data import DATASETS, PARTITIONS
from fedwsq.evaluation import METRICS
from fedwsq.methods import METHODS
from fedwsq.models import MODELS, STANDARDIZATIONS
from fedwsq.training import CRITERIA, OPTIMIZERS

KINDS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "algorithms": ALGORITHMS,
    "codecs": CODECS,
    "bits": BITS,
    "models": MODELS,
    "standardizations": STANDARDIZATIONS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "server-optimizers": SERVER_OPTIMIZERS,
    "optimizers": OPTIMIZERS,
    "criteria": CRITERIA,
    "metrics": METRICS,
}


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "ls",
        help="list methods, algorithms, codecs, models, data sets, configs",
        description="List what there is to choose from, with its settings and their defaults.",
        epilog="examples:\n  fedwsq ls\n  fedwsq ls codecs\n  fedwsq ls configs\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", nargs="?", choices=["methods", *KINDS, "configs"], help="one kind only (default: all)")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print the tables."""
    console = Console(highlight=False, markup=False, emoji=False)
    if args.kind in (None, "methods"):
        rows = [(name, _compact(method.settings), method.idea) for name, method in METHODS.items()]
        console.print(_table("methods", rows))
    for kind, entries in KINDS.items():
        if args.kind in (None, kind):
            rows = [(name, _settings(entry), _first_line(entry.__doc__)) for name, entry in entries.items()]
            console.print(_table(kind, rows))
    if args.kind in (None, "configs"):
        heads = {name: path.read_text().splitlines()[0].lstrip("# ") for name, path in shipped_configs().items()}
        console.print(_table("configs", [(name, "", head) for name, head in heads.items()]))
    return 0


def _table(kind: str, rows: list[tuple[str, str, str]]) -> Table:
    table = Table(title=kind, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


def _compact(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0] if doc else ""


def _settings(entry: Callable[..., Any]) -> str:
    """`alpha = 0.3`: what a config can set."""
    if is_dataclass(entry):
        return ", ".join(f"{f.name} = {f.default}" for f in fields(entry))
    parameters = inspect.signature(entry).parameters.values()
    given = [
        p
        for p in parameters
        if p.default is not p.empty and p.name not in ("classes", "channels", "outputs", "targets")
    ]
    return ", ".join(f"{p.name} = {p.default!r}" for p in given)
