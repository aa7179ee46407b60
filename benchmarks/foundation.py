"""The figures the README claims of a run as a whole: bytes, accuracy, speed and overhead.

    python benchmarks/foundation.py [size] [quickstart] [overhead] [--json FILE]

`overhead` needs CIFAR-10 under FEDWSQ_DATA. Without names, all of them run.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

import torch

from fedwsq import Danuq, Fixed, Float32, Link, Schema
from fedwsq.bench.figure import machine
from fedwsq.models import resnet18
from fedwsq.wire import Line
from script import Row, parser, rows, total

SEEDS = (0, 1, 2)


def fedwsq(out: Path, *words: str) -> list[Row]:
    """Run the command line in a process of its own and return its rows."""
    command = [sys.executable, "-m", "fedwsq.cli", "run", *words, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return rows(out)


def quickstart(folder: Path) -> Row:
    """FedWSQ at 4 bits against the same in float32, three seeds each; the first one is timed."""
    began = time.perf_counter()
    coded = [fedwsq(folder / "coded-0", "seed=0")]
    seconds = time.perf_counter() - began
    coded += [fedwsq(folder / f"coded-{seed}", f"seed={seed}") for seed in SEEDS[1:]]
    plain = [
        fedwsq(folder / f"plain-{seed}", f"seed={seed}", "uplink.codec=float32") for seed in SEEDS
    ]
    last_coded = [run[-1]["test_accuracy"] for run in coded]
    last_plain = [run[-1]["test_accuracy"] for run in plain]
    rounds = list(chain.from_iterable(coded))
    return {
        "seconds": seconds,
        "accuracy_4bit": last_coded,
        "accuracy_float32": last_plain,
        "mean_4bit": statistics.fmean(last_coded),
        "mean_float32": statistics.fmean(last_plain),
        "uplink_factor": total(rounds, "uplink_bytes_float32") / total(rounds, "uplink_bytes"),
    }


def size(folder: Path) -> Row:
    """Bytes of one client's reply for ResNet-18 with 10 classes at each width, metrics included."""
    with torch.device("meta"):
        schema = Schema({name: tuple(p.shape) for name, p in resnet18().named_parameters()})
    links = {32: Link(Float32()), **{bits: Link(Danuq(), Fixed(bits)) for bits in (4, 2, 1)}}
    lines = {bits: Line(link, schema) for bits, link in links.items()}
    lengths = {bits: line.reply_bytes(bits, ("delta",)) for bits, line in lines.items()}
    return {
        "reply_bytes": lengths,
        "factor": {bits: lengths[32] / length for bits, length in lengths.items()},
    }


def overhead(folder: Path) -> Row:
    """The share of a resnet8 round that is neither training nor evaluation.

    On one worker, where nothing overlaps.
    """
    found = fedwsq(folder / "overhead", "cifar10-resnet8", "rounds=5", "--workers", "1")
    shares = [1 - (row["train_seconds"] + row["eval_seconds"]) / row["seconds"] for row in found]
    return {
        "share_median": statistics.median(shares),
        "shares": shares,
        "round_seconds": [row["seconds"] for row in found],
    }


def main() -> None:
    parts = {"size": size, "quickstart": quickstart, "overhead": overhead}
    words = parser(__doc__)
    words.add_argument("parts", nargs="*", choices=parts, metavar="PART", help=", ".join(parts))
    words.add_argument("--json", type=Path, help="also write the figures to this file")
    args = words.parse_args()
    results = {"machine": {"date": time.strftime("%Y-%m-%d"), **machine()}}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.parts or parts:
            results[name] = parts[name](Path(folder))
            print(name, json.dumps(results[name], indent=2), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
