"""For people with GPUs: the command for every cell of table 1, what it takes, how to compare.

    python benchmarks/gpu.py [--write benchmarks/GPU.md]
    python benchmarks/gpu.py --cells            the 264 commands, one a line

Nothing here was run on a GPU: hours are arithmetic over the multiplications of a round.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedwsq.plan.published import Heading, Table, published_table
from script import parser, report

# Multiply-adds of one ResNet-18 forward pass at 32x32; a step is three of them, and an image of
# 64x64 has four times as many pixels.
FORWARD = 0.556e9
CLIENTS = 5
EPOCHS = 5
ROUNDS = 1000
# Examples a client holds, images to evaluate on, and pixels over those of CIFAR.
SETTINGS = {
    "cifar10": (500, 10_000, 1),
    "cifar100": (500, 10_000, 1),
    "tinyimagenet": (1000, 10_000, 4),
}
SUSTAINED = (10, 20, 40)  # trillion floating-point operations a second
# Training time over FedAvg's where it is not about the same (results/methods.md).
SLOWER = {"fedsmoo": 2.1, "fedmlb": 2.0, "fedrcl": 1.3, "fedntd": 1.3}


def operations(config: str) -> float:
    """Floating-point operations of a cell: two a multiply-add."""
    examples, evaluated, pixels = SETTINGS[config]
    trained = CLIENTS * EPOCHS * examples
    return 2 * ROUNDS * pixels * FORWARD * (3 * trained + evaluated)


def hours(config: str, trillions: float) -> float:
    return operations(config) / (trillions * 1e12) / 3600


def words(settings: Mapping[str, Any]) -> list[str]:
    """`KEY=VALUE` as a command line takes them; the config is not one of them."""
    return [f"{key}={_toml(value)}" for key, value in settings.items() if key != "config"]


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {_quoted(each)}" for key, each in value.items())
        return f"{{ {inside} }}"
    return str(value)


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def command(table: Table, row: Heading, column: Heading) -> list[str]:
    """The run of one cell. The method comes first: what follows refines it."""
    cell = table.cell(row, column)
    method = {"method": cell.pop("method")}
    return ["fedwsq", "run", str(cell["config"]), *words(method), *words(cell)]


def cells(table: Table) -> Iterator[list[str]]:
    for row in table.rows:
        for column in table.columns:
            name = "_".join((*row.label, *column.label)).replace("+", "plus")
            yield [*command(table, row, column), "--out", f"runs/table-1/{name}_seed-0"]


def shown(parts: list[str]) -> str:
    return f"`{' '.join(map(shlex.quote, parts))}`"


HEAD = """\
# Table 1 on GPUs

Written by `python benchmarks/gpu.py --write benchmarks/GPU.md`. None of it was run on a GPU by
us: the commands are checked against the plans of `fedwsq sweep paper-table-1`, the hours are
arithmetic.

## All of it, or a part

    fedwsq fetch cifar10; fedwsq fetch cifar100; fedwsq fetch tinyimagenet
    fedwsq sweep paper-table-1 --list                         # 264 cells for each of three seeds
    fedwsq sweep paper-table-1 seed=0 --device cuda --out runs/table-1

The same command again goes on after a stop, and several processes share one folder: with more
than one GPU, start one each with `--device cuda:0`, `--device cuda:1` and the same `--out`.
`paper-table-2` to `paper-table-5` are the other tables.

## One cell

`fedwsq run COLUMN ROW`, with the words of its column, then those of its row; the sweep knows such
a run for its own cell. `python benchmarks/gpu.py --cells` prints all 264. For example FedWSQ at 1
bit on CIFAR-100 at alpha = 0.1:

    {example}

"""

COST = """
## What it takes

A round of a CIFAR cell is 26 trillion multiply-adds (5 clients, 5 epochs of 500 images, three
passes each, and 10,000 images to evaluate on), one of Tiny-ImageNet 189. A thousand rounds, in
hours, on a GPU that sustains so many trillion floating-point operations a second (batches are of
50 and 100 images, so that is far below what a data sheet says):

"""

COMPARE = """
Times the factor of the method: {slower}; others are near FedAvg. What your machine sustains, it
says itself, from one batch of the real thing, and with the bytes of all rounds:

    fedwsq run cifar10 --dry-run --device cuda

The paper chooses the decay of the learning rate for each method, from 0.995, 0.998 and 1; here it
is 0.995 for all, as for FedWSQ. `training.lr_decay=0.998` and `training.lr_decay=1` are the others.

`eval_every=10` leaves 10 % of the evaluation; the paper's smoothing is over every round, so keep
it at 1 to compare. `training.precision` is bfloat16 on GPUs that multiply it;
`training.precision=float32` is closer to the paper's code.

## How to compare

    fedwsq table runs/table-1 --like paper-table-1     # yours, the paper's, the differences
    fedwsq compare runs/table-1                        # over seeds: intervals, bytes, what is noise
    fedwsq report runs/table-1 --out table-1.html      # curves and tables on one page
    python benchmarks/evidence.py keep runs/table-1/*  # small, with receipts, to share

The table lists every setting that is not the published one. Cells not run show the paper's number
alone. The same command gives the same weights on the same kind of GPU only as far as its kernels
do; across kinds compare accuracies over seeds.
"""


def column_words(column: Heading) -> list[str]:
    """Where a documented command starts: `cifar10 data.partition.alpha=0.1`."""
    return [str(column.settings["config"]), *words(column.settings)]


def row_words(table: Table, row: Heading) -> list[str]:
    """How it goes on; FedHQ+ has an aggregation of its own where the table has one for all."""
    return words({"method": row.settings["method"], **table.settings, **row.settings})


def document(table: Table) -> str:
    row = next(row for row in table.rows if row.label == ("FedWSQ", "1"))
    column = next(column for column in table.columns if column.label == ("CIFAR-100", "0.1"))
    example = " ".join(map(shlex.quote, command(table, row, column)))
    text = HEAD.format(example=f"{example} --device cuda")
    text += "| column | config and words |\n|---|---|\n"
    for column in table.columns:
        text += f"| {', '.join(column.label)} | {shown(column_words(column))} |\n"
    text += "\n| row, bits | words |\n|---|---|\n"
    for row in table.rows:
        text += f"| {', '.join(row.label)} | {shown(row_words(table, row))} |\n"
    text += COST
    text += f"| data | {' | '.join(f'{each} trillion' for each in SUSTAINED)} |\n"
    text += f"|---|{'---|' * len(SUSTAINED)}\n"
    for config in SETTINGS:
        text += f"| {config} | {' | '.join(f'{hours(config, x):.1f}' for x in SUSTAINED)} |\n"
    every = sum(hours(str(column.settings["config"]), 20) for column in table.columns)
    text += f"\nAll 264 cells of one seed at 20 trillion: {len(table.rows) * every:.0f} hours, "
    text += "if all took as long as FedAvg.\n"
    slower = ", ".join(f"{name} {factor:g}" for name, factor in SLOWER.items())
    return text + COMPARE.format(slower=slower)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", type=Path)
    options.add_argument("--cells", action="store_true", help="print every command")
    args = options.parse_args()
    table = published_table("paper-table-1")
    if args.cells:
        for each in cells(table):
            print(" ".join(map(shlex.quote, each)))
        return
    report(document(table), args.write)


if __name__ == "__main__":
    main()
