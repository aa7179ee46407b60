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
from fedwsq.codecs.measure import measure, samples, usual_rates
from fedwsq.core.errors import ConfigError
from fedwsq.core.threads import one_thread
from fedwsq.data import DATASETS, PARTITIONS
from fedwsq.evaluation import METRICS
from fedwsq.models import MODELS, STANDARDIZATIONS
from fedwsq.plan.build import shipped_configs
from fedwsq.plan.methods import METHODS
from fedwsq.training import CRITERIA, OPTIMIZERS
from fedwsq.wire.channels import CHANNELS

KINDS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "algorithms": ALGORITHMS,
    "codecs": CODECS,
    "bits": BITS,
    "channels": CHANNELS,
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
        epilog="examples:\n  fedwsq ls\n  fedwsq ls codecs\n  fedwsq ls codecs --error\n  fedwsq ls configs\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "kind",
        nargs="?",
        choices=["methods", *KINDS, "configs"],
        help="one kind only (default: all)",
    )
    parser.add_argument(
        "--error", action="store_true", help="with codecs: measure what each loses, sends and takes"
    )
    parser.add_argument(
        "--numel",
        type=int,
        default=2**18,
        help="with --error: elements coded (default: %(default)s)",
    )
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print the tables."""
    console = Console(highlight=False, markup=False, emoji=False)
    if args.error:
        if args.kind != "codecs":
            raise ConfigError("--error measures codecs; write fedwsq ls codecs --error")
        with one_thread():  # as a worker codes
            console.print(_errors(args.numel))
        return 0
    if args.kind in (None, "methods"):
        rows = [(name, _compact(method.settings), method.idea) for name, method in METHODS.items()]
        console.print(_table("methods", rows))
    for kind, entries in KINDS.items():
        if args.kind in (None, kind):
            rows = [
                (name, _settings(entry), _first_line(entry.__doc__))
                for name, entry in entries.items()
            ]
            console.print(_table(kind, rows))
    if args.kind in (None, "configs"):
        heads = {
            name: path.read_text().splitlines()[0].lstrip("# ")
            for name, path in shipped_configs().items()
        }
        console.print(_table("configs", [(name, "", head) for name, head in heads.items()]))
    return 0


def _errors(numel: int) -> Table:
    """Every codec at its usual rates on normal, Laplace and Student-t data: error, bytes and speed."""
    if not 1 <= numel <= 2**28:
        raise ConfigError(f"--numel is {numel}, must be from 1 to {2**28}")
    vectors = samples(numel)
    title = f"codecs on {numel} elements of unit variance: squared error, bytes an element, GB of float32 a second"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    heads = [f"{what}\n{kind}" for what in ("error", "bytes") for kind in vectors]
    table.add_column("codec\n", no_wrap=True)
    for head in ("bits\n", *heads, "encode\nGB/s", "decode\nGB/s"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, entry in CODECS.items():
        codec = entry()
        for rate in usual_rates(codec):
            rows = [
                measure(codec, rate, x, repeats=3 if kind == "normal" else 0)
                for kind, x in vectors.items()
            ]
            errors, sizes = (
                [row.error for row in rows],
                [row.bits_per_parameter / 8 for row in rows],
            )
            speeds = [4e-9 * numel / rows[0].encode_seconds, 4e-9 * numel / rows[0].decode_seconds]
            table.add_row(
                name, f"{rate:g}", *(f"{value:.3g}" for value in (*errors, *sizes, *speeds))
            )
    return table


def _table(kind: str, rows: list[tuple[str, str, str]]) -> Table:
    table = Table(
        title=kind, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
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
