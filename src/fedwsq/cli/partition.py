"""`fedwsq partition`: who holds which examples."""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedwsq.cli.plot import blank, save
from fedwsq.cli.run import config_and_overrides
from fedwsq.core.errors import ConfigError
from fedwsq.data import Split
from fedwsq.data.split_files import check_range, import_split, save_split
from fedwsq.federation.simulation import load_data, split_data
from fedwsq.plan import load_plan

EXAMPLES = """\
CONFIG and KEY=VALUE are those of `fedwsq run`; the split shown is the one that such a run has.
A file written with --out is used with data.partition=file data.partition.path=FILE.
--import reads the split files of the FedACG and FedWSQ repositories: text with a Python dict, \
client -> indices. With a
config or a KEY=VALUE they are held against its data.

examples:
  fedwsq partition
  fedwsq partition data.partition.alpha=0.05 data.clients=20 --plot split.png
  fedwsq partition cifar10 data.root=DIR data.partition=shards --out split.json
  fedwsq partition --import dirichlet0.3_clients100.txt --out split.json
  fedwsq partition cifar10 data.root=DIR --import dirichlet0.01_clients100.txt --drop-repeats \
--out split.json
"""
SHOWN_CLIENTS = 20
SHOWN_COLUMNS = 100
SHADES = " .:-=+*#%@"


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "partition",
        help="show, save or import a split of the data over clients",
        description="Show how a plan's data is split over its clients: sizes, skew, and a picture.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="[CONFIG] KEY=VALUE", help="a config, then overrides"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the split as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw clients by classes: .png, .svg or .pdf"
    )
    parser.add_argument(
        "--import",
        type=Path,
        dest="imported",
        metavar="FILE",
        help="a published split in place of the plan's own",
    )
    repeats = parser.add_mutually_exclusive_group()
    for choice, what in {"keep": "as they are", "drop": "with the first client only"}.items():
        repeats.add_argument(
            f"--{choice}-repeats",
            dest="repeats",
            action="store_const",
            const=choice,
            default="refuse",
            help=f"take indices that an imported file gives out again {what}",
        )
    parser.set_defaults(main=main)


class Found(NamedTuple):
    """A split, and what is known of the examples that it gives out."""

    title: str
    split: Split
    examples: int | None = None  # None: the data is not at hand
    labels: Tensor | None = None  # None: not one class an example
    classes: int = 0


def main(args: argparse.Namespace) -> int:
    """Make or read the split, then print, draw and save it."""
    # First: a picture that cannot be saved is refused before data is loaded.
    figure = blank(args.plot, 8, 6) if args.plot else None
    if args.repeats != "refuse" and not args.imported:
        raise ConfigError(
            f"--{args.repeats}-repeats needs --import: splits of our own repeat nothing"
        )

    found = find(args)
    if figure is not None:
        if found.labels is None:
            raise ConfigError(
                "--plot needs data with one class an example; with --import give its config too"
            )
        draw(figure, found.split.counts(found.labels, found.classes))
        save(figure, args.plot)
    if args.out:
        save_split(args.out, found.split, found.examples)

    print("\n".join(describe(found)))
    if args.out:
        clients = len(found.split)
        print(
            f"use it with data.partition=file data.partition.path={args.out} data.clients={clients}"
        )
    return 0


def find(args: argparse.Namespace) -> Found:
    """The split of a plan, or an imported one, with or without the data of a plan."""
    if args.imported and not args.words:
        return Found(str(args.imported), import_split(args.imported, args.repeats))

    config, overrides = config_and_overrides(args.words)
    # Fewer clients than a round of the config samples can be split too.
    plan = load_plan(config, ["clients_per_round=1", *overrides])
    dataset, kept, _ = load_data(plan)
    labels = dataset.train.labels[kept]
    if args.imported:
        origin = str(args.imported)
        split = import_split(args.imported, args.repeats)
        check_range(split, None, len(labels), args.imported)
    else:
        origin = plan.data.partition.name
        split = split_data(plan, dataset, kept)

    found = Found(f"{plan.data.load.name}, {origin}", split, len(labels))
    # Several targets an example, or real numbers, are not classes.
    if labels.dim() != 1 or labels.is_floating_point():
        return found
    return found._replace(labels=labels, classes=dataset.classes)


def describe(found: Found) -> list[str]:
    """The lines to print: what there is, its statistics, and a picture of the first clients."""
    split = found.split
    repeats = split.repeats
    distinct = len(split.indices) - repeats
    head = f"{found.title}: {distinct} examples over {len(split)} clients"
    if repeats:
        head += f", {repeats} given out again"
    if found.labels is None:
        return [head, *table({"examples": split.sizes})]

    head += f", {len(found.labels) - distinct} unused; {found.classes} classes"
    statistics = split.statistics(found.labels, found.classes)
    rows = {
        "examples": statistics.sizes,
        "classes": statistics.classes,
        "largest share": statistics.largest,
        "effective classes": statistics.effective,
    }
    return [head, *table(rows), *picture(split.counts(found.labels, found.classes))]


def table(rows: dict[str, Tensor]) -> list[str]:
    """Least, mean and most over the clients, a line each."""
    lines = [f"{'each client':18}{'min':>10}{'mean':>10}{'max':>10}"]
    for name, values in rows.items():
        mean = float(values.double().mean())
        lines.append(f"{name:18}{float(values.min()):10.5g}{mean:10.5g}{float(values.max()):10.5g}")
    return lines


def picture(counts: Tensor) -> list[str]:
    """The first clients as rows and the classes as columns, the darker the more examples."""
    clients, classes = counts.shape
    shown = min(clients, SHOWN_CLIENTS)
    # Many classes share a column.
    wide = -(-classes // SHOWN_COLUMNS)
    column = torch.arange(classes) // wide
    sums = torch.zeros(shown, int(column[-1]) + 1, dtype=torch.int64)
    sums.index_add_(1, column, counts[:shown])

    most = max(1, int(sums.max()))
    # Rounded up: only none at all is blank.
    shades = (sums * (len(SHADES) - 1) + most - 1) // most
    which = "clients" if shown == clients else f"first {shown} clients"
    merged = f" ({wide} a column)" if wide > 1 else ""
    lines = [f"{which} down, classes across{merged}; {SHADES[-1]} is {most}"]
    for client, row in enumerate(shades.tolist()):
        lines.append(f"{client:6} |{''.join(SHADES[shade] for shade in row)}|")
    return lines


def draw(figure: Any, counts: Tensor) -> None:
    """Clients by classes, the darker the more examples."""
    axes = figure.subplots()
    image = axes.imshow(
        counts.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest"
    )
    axes.set(xlabel="class", ylabel="client")
    figure.colorbar(image, label="examples")
