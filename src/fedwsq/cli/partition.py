"""`fedwsq partition`: who holds which examples."""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwsq.cli.plot import blank, save
from fedwsq.core.errors import ConfigError
from fedwsq.data import Split
from fedwsq.data.split_files import check_range, import_split, save_split
from fedwsq.federation.workload import load_data, split_data
from fedwsq.plan.build import load_plan

EXAMPLES = """\
CONFIG and KEY=VALUE are those of `fedwsq run`; the split shown is the one that such a run has.
A file written with --out is used with data.partition=file data.partition.path=FILE.
--import reads the split files of the FedACG and FedWSQ repositories: text with a Python dict, client -> indices. With a
config or a KEY=VALUE they are held against its data.

examples:
  fedwsq partition
  fedwsq partition data.partition.alpha=0.05 data.clients=20 --plot split.png
  fedwsq partition cifar10 data.root=DIR data.partition=shards --out split.json
  fedwsq partition --import dirichlet0.3_clients100.txt --out split.json
  fedwsq partition cifar10 data.root=DIR --import dirichlet0.01_clients100.txt --drop-repeats --out split.json
"""
SHOWN_CLIENTS, SHOWN_COLUMNS = 20, 100
SHADES = " .:-=+*#%@"


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
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
            f"--{choice}-repeats", dest="repeats", action="store_const", const=choice, default="refuse",
            help=f"take indices that an imported file gives out again {what}",
        )  # fmt: skip
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Make or read the split, then print, draw and save it."""
    words: list[str] = args.words
    figure = blank(args.plot, 8, 6) if args.plot else None
    if args.repeats != "refuse" and not args.imported:
        raise ConfigError(
            f"--{args.repeats}-repeats needs --import: splits of our own repeat nothing"
        )
    labels, classes = None, 0
    if args.imported and not words:
        split, title = import_split(args.imported, args.repeats), str(args.imported)
    else:
        config = words.pop(0) if words and "=" not in words[0] else "quickstart"
        # Fewer clients than a round of the config samples can be split too.
        plan = load_plan(config, ["clients_per_round=1", *words])
        dataset, kept, _ = load_data(plan)
        labels, classes = dataset.train.labels[kept], dataset.classes
        title = f"{plan.data.load.name}, {plan.data.partition.name}"
        if args.imported:
            split, title = (
                import_split(args.imported, args.repeats),
                f"{plan.data.load.name}, {args.imported}",
            )
            check_range(split, None, len(labels), args.imported)
        else:
            split = split_data(plan, dataset, kept)
    examples = None if labels is None else len(labels)
    if labels is not None and (labels.dim() != 1 or labels.is_floating_point()):
        labels = None  # not classes
    if figure is not None:
        if labels is None:
            raise ConfigError(
                "--plot needs data with one class an example; with --import give its config too"
            )
        draw(figure, split.counts(labels, classes))
        save(figure, args.plot)
    if args.out:
        save_split(args.out, split, examples)
    print("\n".join(describe(title, split, labels, classes)))
    if args.out:
        print(
            f"use it with data.partition=file data.partition.path={args.out} data.clients={len(split)}"
        )
    return 0


def describe(title: str, split: Split, labels: Tensor | None, classes: int) -> list[str]:
    """The lines to print: what there is, its statistics, and a picture of the first clients."""
    repeats = split.repeats
    distinct = len(split.indices) - repeats
    head = (
        f"{title}: {distinct} examples over {len(split)} clients"
        + f", {repeats} given out again" * bool(repeats)
    )
    if labels is None:
        return [head, *table({"examples": split.sizes})]
    head += f", {len(labels) - distinct} unused; {classes} classes"
    found = split.statistics(labels, classes)
    rows = {
        "examples": found.sizes,
        "classes": found.classes,
        "largest share": found.largest,
        "effective classes": found.effective,
    }
    return [head, *table(rows), *picture(split.counts(labels, classes))]


def table(rows: dict[str, Tensor]) -> list[str]:
    """Least, mean and most over the clients, a line each."""
    lines = [f"{'each client':18}{'min':>10}{'mean':>10}{'max':>10}"]
    for name, values in rows.items():
        numbers = (float(values.min()), float(values.double().mean()), float(values.max()))
        lines.append(f"{name:18}" + "".join(f"{number:10.5g}" for number in numbers))
    return lines


def picture(counts: Tensor) -> list[str]:
    """The first clients as rows and the classes as columns, the darker the more examples."""
    shown, classes = counts[:SHOWN_CLIENTS], counts.shape[1]
    wide = -(-classes // SHOWN_COLUMNS)  # classes a column
    column = torch.arange(classes) // wide
    shown = torch.zeros(len(shown), int(column[-1]) + 1, dtype=torch.int64).index_add_(
        1, column, shown
    )
    most = max(1, int(shown.max()))
    levels = (shown * (len(SHADES) - 1) + most - 1) // most  # rounded up: only none at all is blank
    which = "clients" if len(shown) == len(counts) else f"first {len(shown)} clients"
    head = f"{which} down, classes across{f' ({wide} a column)' if wide > 1 else ''}; {SHADES[-1]} is {most}"
    return [
        head,
        *(
            f"{client:6} |{''.join(SHADES[n] for n in row)}|"
            for client, row in enumerate(levels.tolist())
        ),
    ]


def draw(figure: Any, counts: Tensor) -> None:
    """Clients by classes, the darker the more examples."""
    axes = figure.subplots()
    image = axes.imshow(
        counts.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest"
    )
    axes.set(xlabel="class", ylabel="client")
    figure.colorbar(image, label="examples")
