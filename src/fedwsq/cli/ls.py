"""`fedwsq ls`: what there is to choose from."""

import argparse
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedwsq.algorithms import ALGORITHMS, SERVER_OPTIMIZERS
from fedwsq.codecs import BITS, CODECS, Codec
from fedwsq.codecs.measure import measure, samples, usual_rates
from fedwsq.core.errors import ConfigError
from fedwsq.core.threads import one_thread
from fedwsq.data import DATASETS, PARTITIONS
from fedwsq.evaluation import METRICS
from fedwsq.models import MODELS, STANDARDIZATIONS
from fedwsq.plan import METHODS, shipped_configs
from fedwsq.training import CRITERIA, OPTIMIZERS
from fedwsq.wire.channels import CHANNELS

TABLES: dict[str, Mapping[str, Callable[..., Any]]] = {
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
KINDS = ("methods", *TABLES, "configs")
# Arguments that a run gives to a model, a criterion or a metric; no config can.
GIVEN = ("classes", "channels", "outputs", "targets")
MAX_NUMEL = 2**28


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "ls",
        help="list methods, algorithms, codecs, models, data sets, configs",
        description="List what there is to choose from, with its settings and their defaults.",
        epilog="examples:\n  fedwsq ls\n  fedwsq ls codecs\n  fedwsq ls codecs --error\n"
        "  fedwsq ls configs\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, help="one kind only (default: all)")
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
    console = Console(highlight=False, markup=False, emoji=False)
    if args.error:
        if args.kind != "codecs":
            raise ConfigError("--error measures codecs; write fedwsq ls codecs --error")
        with one_thread():  # as a worker codes
            console.print(_errors(args.numel))
        return 0

    for kind in [args.kind] if args.kind else KINDS:
        table = Table(
            title=kind, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
        )
        for row in _rows(kind):
            table.add_row(*row)
        console.print(table)
    return 0


def _rows(kind: str) -> list[tuple[str, str, str]]:
    """Name, settings and a line about each entry of a kind."""
    if kind == "methods":
        return [(name, _listed(m.settings), m.idea) for name, m in METHODS.items()]
    # The first line of a config is a comment that says what it is.
    if kind == "configs":
        heads = {name: _first_line(path.read_text()) for name, path in shipped_configs().items()}
        return [(name, "", head.lstrip("# ")) for name, head in heads.items()]
    entries = TABLES[kind].items()
    return [(name, _settings(entry), _first_line(entry.__doc__ or "")) for name, entry in entries]


def _settings(entry: Callable[..., Any]) -> str:
    """`alpha = 0.3`: what a config can set."""
    if is_dataclass(entry):
        return _listed({f.name: f.default for f in fields(entry)})
    parameters = inspect.signature(entry).parameters
    optional = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    return _listed({name: repr(value) for name, value in optional.items() if name not in GIVEN})


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _errors(numel: int) -> Table:
    """Every codec at its usual rates on data of each distribution: error, bytes and speed."""
    if not 1 <= numel <= MAX_NUMEL:
        raise ConfigError(f"--numel is {numel}, must be from 1 to {MAX_NUMEL}")
    vectors = samples(numel)
    title = (
        f"codecs on {numel} elements of unit variance: "
        "squared error, bytes an element, GB of float32 a second"
    )
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("codec\n", no_wrap=True)
    errors = [f"error\n{kind}" for kind in vectors]
    sizes = [f"bytes\n{kind}" for kind in vectors]
    for head in ("bits\n", *errors, *sizes, "encode\nGB/s", "decode\nGB/s"):
        table.add_column(head, justify="right", no_wrap=True)

    for name, entry in CODECS.items():
        codec = entry()
        for rate in usual_rates(codec):
            figures = _measured(codec, rate, vectors)
            table.add_row(name, f"{rate:g}", *(f"{value:.3g}" for value in figures))
    return table


def _measured(codec: Codec, rate: float, vectors: Mapping[str, Tensor]) -> list[float]:
    """A row of figures: errors, then bytes an element, then the two speeds."""
    # How long it takes does not depend on the distribution: timed on one of them.
    timed = measure(codec, rate, vectors["normal"], repeats=3)
    rows = [measure(codec, rate, x, repeats=0) for x in vectors.values()]
    gigabytes = 4e-9 * len(vectors["normal"])
    return [
        *(row.error for row in rows),
        *(row.bits_per_parameter / 8 for row in rows),
        gigabytes / timed.encode_seconds,
        gigabytes / timed.decode_seconds,
    ]
