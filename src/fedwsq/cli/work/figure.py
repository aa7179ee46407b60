"""`fedwsq figure`: figures for papers."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedwsq.cli.plot import blank, save
from fedwsq.cli.work.levels import level_set
from fedwsq.cli.work.partition import draw, planned_split
from fedwsq.codecs import Float32
from fedwsq.core.errors import ConfigError
from fedwsq.core.files import mapped
from fedwsq.core.text import printable
from fedwsq.report.compare import flags
from fedwsq.report.figures import (
    PANEL,
    Panel,
    draw_bits,
    draw_curves,
    draw_levels,
    grid_size,
    panels,
)
from fedwsq.runs.checkpoint import newest_snapshot
from fedwsq.runs.reading import Reading, is_run, read_runs
from fedwsq.wire import decode

LEAST_VALUES = 500  # of a tensor whose histogram says something
REPLY = re.compile(r"round-\d+-client-\d+\.fwsq")  # as a recorder names them


def main(args: argparse.Namespace) -> int:
    kinds = {"curves": curves, "bits": bits, "levels": levels, "split": split}
    kinds[args.kind](args)
    print(args.out)
    return 0


def curves(args: argparse.Namespace) -> None:
    found = panels(readings(args))
    figure = blank(args.out, *grid_size(len(found)))
    draw_curves(figure, found, args.against, args.smoothed)
    save(figure, args.out)
    print_flags(found)


def bits(args: argparse.Namespace) -> None:
    found = panels(readings(args))
    figure = blank(args.out, *grid_size(len(found)))
    draw_bits(figure, found)
    save(figure, args.out)
    print_flags(found)


def print_flags(found: Sequence[Panel]) -> None:
    """A picture cannot say why its lines should not be compared; the terminal can."""
    said = [flag for panel in found for flag in flags(panel.groups)]
    for flag in dict.fromkeys(said):
        print(printable(f"flag: {flag}"), file=sys.stderr)


def readings(args: argparse.Namespace) -> list[Reading]:
    """The runs to draw; of those that are not at their end it is said."""
    found = read_runs(map(Path, args.runs))
    for run in found:
        if run.state == "finished":
            continue
        how = "left out"
        if run.rows and run.settings:
            how = f"drawn to round {run.rows[-1].round}"
        print(f"warning: {printable(run.name)} is {run.state}, and {how}", file=sys.stderr)
    return found


def levels(args: argparse.Namespace) -> None:
    if len(args.runs) > 1:
        raise ConfigError(f"levels are drawn over the updates of one run, not of {len(args.runs)}")
    marks = {}
    for codec in args.codecs.split(","):
        found = level_set(codec, args.bits)
        marks[codec] = [level * found.scale for level in found.levels]
    updates = two_tensors(Path(args.runs[0]))
    figure = blank(args.out, 7, 1 + len(updates) * PANEL[1] * 0.8)
    draw_levels(figure, updates, marks)
    save(figure, args.out)


def split(args: argparse.Namespace) -> None:
    source, *words = args.runs
    if is_run(Path(source)):
        source = str(Path(source, "config.toml"))
    # First: what cannot be saved is refused before data is loaded.
    figure = blank(args.out, 8, 6)
    draw(figure, planned_split([source, *words], args.trust))
    save(figure, args.out)


def two_tensors(run: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Updates of one tensor early in the model and one late, of all replies that were kept."""
    if not is_run(run):
        raise ConfigError(f"{run} is not a run directory; name one that fedwsq run made")
    kept = sorted(run.glob("messages/*.fwsq"))
    replies = [path for path in kept if REPLY.fullmatch(path.name)]
    if not replies:
        raise ConfigError(
            f"{run} has no replies: run with uplink.codec=float32 and record.rounds=[1], or with "
            "--keep-messages for those of all rounds, to draw levels"
        )
    values: dict[str, list[npt.NDArray[np.float32]]] = {}
    for path in replies:
        for name, packet in decode(mapped(path), None).packets.get("delta", {}).items():
            whole = len(packet.code) % 4 == 0
            if packet.codec == Float32.wire_id and whole and len(packet.code) >= 4 * LEAST_VALUES:
                values.setdefault(name, []).append(np.frombuffer(packet.code, "<f4"))
    if not values:
        raise ConfigError(f"{run} sent no tensor in float32: run with uplink.codec=float32")
    # A third and two thirds of the way: neither the stem nor the classifier, where there are more.
    numbers = list(values)
    chosen = dict.fromkeys((numbers[len(numbers) // 3], numbers[2 * len(numbers) // 3]))
    names = tensor_names(run)
    return {names.get(number, number): np.concatenate(values[number]) for number in chosen}


def tensor_names(run: Path) -> dict[str, str]:
    """What messages call `#0`, `#1` and so on, as the run's last checkpoint lists them."""
    snapshot, _ = newest_snapshot(run / "checkpoints")
    return {f"#{number}": name for number, name in enumerate(snapshot.server["params"])}
