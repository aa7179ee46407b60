"""`fedwsq partition`: who holds which examples."""

import argparse
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedwsq.analysis.pictures import whole_numbers
from fedwsq.cli.outputs import require_folder, writing
from fedwsq.cli.plot import blank, save
from fedwsq.cli.run import config_and_overrides
from fedwsq.cli.trust import trusting
from fedwsq.core.errors import ConfigError
from fedwsq.data import Dataset, Split
from fedwsq.data.split_files import check_range, import_split, save_split
from fedwsq.federation.simulation import load_data, split_data
from fedwsq.plan import Plan, load_plan, parse_overrides

SHOWN_CLIENTS = 20
SHOWN_COLUMNS = 100
SHADES = " .:-=+*#%@"
NAMED_CLASSES = 30  # an axis has no room for the names of more


class Found(NamedTuple):
    """A split, and what is known of the examples that it gives out."""

    title: str
    split: Split
    examples: int | None = None  # None: the data is not at hand
    labels: Tensor | None = None  # None: not one class an example
    classes: int = 0
    names: tuple[str, ...] = ()  # of the classes, where they have some


def main(args: argparse.Namespace) -> int:
    """Make or read the split, then print, draw and save it."""
    # First: a picture that cannot be saved is refused before data is loaded.
    figure = blank(args.plot, 8, 6) if args.plot else None
    if args.out:
        require_folder(args.out)
    if args.repeats != "refuse" and not args.imported:
        raise ConfigError(
            f"--{args.repeats}-repeats needs --import: splits of our own repeat nothing"
        )

    found = find(args)
    if figure is not None:
        draw(figure, found)
        save(figure, args.plot)
    if args.out:
        with writing(args.out):
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
    if not args.imported:
        return planned_split(args.words, args.trust)
    if not args.words:
        return Found(str(args.imported), import_split(args.imported, args.repeats))

    plan = read_plan(args.words, args.trust)
    dataset, kept, _ = load_data(plan)
    split = import_split(args.imported, args.repeats)
    check_range(split, None, len(kept), args.imported)
    return of_data(f"{plan.data.load.name}, {args.imported}", split, dataset, kept)


def planned_split(words: list[str], trust: bool) -> Found:
    """The split that a run of `[CONFIG] KEY=VALUE ...` has."""
    plan = read_plan(words, trust)
    dataset, kept, _ = load_data(plan)
    title = f"{plan.data.load.name}, {plan.data.partition.name}"
    return of_data(title, split_data(plan, dataset, kept), dataset, kept)


def read_plan(words: list[str], trust: bool) -> Plan:
    config, overrides = config_and_overrides(words)
    # Fewer clients than a round of the config samples can be split too.
    with trusting(config, overrides, trust):
        return load_plan(config, {"clients_per_round": 1, **parse_overrides(overrides)})


def of_data(title: str, split: Split, dataset: Dataset, kept: Tensor) -> Found:
    labels = dataset.train.labels[kept]
    found = Found(title, split, len(labels))
    # Several targets an example, or real numbers, are not classes.
    if labels.dim() != 1 or labels.is_floating_point():
        return found
    return found._replace(labels=labels, classes=dataset.classes, names=dataset.class_names)


def describe(found: Found) -> list[str]:
    """The lines to print: what there is, its statistics, and a picture of the first clients."""
    split = found.split
    head = headline(found)
    if split.repeats:
        head += f", {split.repeats} given out again"
    if found.labels is None:
        return [head, *table({"examples": split.sizes})]

    unused = len(found.labels) - distinct(split)
    head += f", {unused} unused; {found.classes} classes"
    statistics = split.statistics(found.labels, found.classes)
    rows = {
        "examples": statistics.sizes,
        "classes": statistics.classes,
        "largest share": statistics.largest,
        "effective classes": statistics.effective,
    }
    return [head, *table(rows), *picture(split.counts(found.labels, found.classes))]


def headline(found: Found) -> str:
    split = found.split
    return f"{found.title}: {distinct(split)} examples over {len(split)} clients"


def distinct(split: Split) -> int:
    """How many examples are given out, each counted once."""
    return len(split.indices) - split.repeats


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


def draw(figure: Any, found: Found) -> None:
    """Clients by classes, the darker the more examples."""
    if found.labels is None:
        raise ConfigError(
            "only data with one class an example can be drawn; with --import give its config too"
        )
    counts = found.split.counts(found.labels, found.classes)
    axes = figure.subplots()
    image = axes.imshow(
        counts.numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest"
    )
    axes.set(title=headline(found), xlabel="class", ylabel="client")
    whole_numbers(axes.yaxis)
    if found.names and found.classes <= NAMED_CLASSES:
        axes.set_xticks(range(found.classes), found.names, rotation=45, ha="right")
    else:
        whole_numbers(axes.xaxis)
    figure.colorbar(image, label="examples")
