"""The figures the README claims of a run as a whole: bytes, accuracy, speed and overhead.

    python benchmarks/foundation.py [size] [quickstart] [overhead] [--json FILE]

`overhead` needs CIFAR-10 under FEDWSQ_DATA. Without names, all of them run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fedwsq import Danuq, Fixed, Float32, Link, Schema
from fedwsq.models import resnet18

SEEDS = (0, 1, 2)


def fedwsq(out: Path, *words: str) -> list[dict]:
    """Run the command line in a process of its own and return its rows."""
    subprocess.run(
        [sys.executable, "-m", "fedwsq.cli", "run", *words, "--out", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def quickstart(folder: Path) -> dict:
    """FedWSQ at 4 bits against the same in float32, three seeds each; the first is timed from start to end."""
    began = time.perf_counter()
    coded = [fedwsq(folder / "coded-0", "seed=0")]
    seconds = time.perf_counter() - began
    coded += [fedwsq(folder / f"coded-{seed}", f"seed={seed}") for seed in SEEDS[1:]]
    plain = [
        fedwsq(folder / f"plain-{seed}", f"seed={seed}", "uplink.codec=float32") for seed in SEEDS
    ]
    last = lambda runs: [rows[-1]["test_accuracy"] for rows in runs]
    rows = [row for run in coded for row in run]
    return {
        "seconds": seconds,
        "accuracy_4bit": last(coded),
        "accuracy_float32": last(plain),
        "mean_4bit": statistics.fmean(last(coded)),
        "mean_float32": statistics.fmean(last(plain)),
        "uplink_factor": sum(r["uplink_bytes_float32"] for r in rows)
        / sum(r["uplink_bytes"] for r in rows),
    }


def size(folder: Path) -> dict:
    """Bytes of one client's reply for ResNet-18 with 10 classes at each width, the metrics that it reports included."""
    with torch.device("meta"):
        schema = Schema({name: tuple(p.shape) for name, p in resnet18().named_parameters()})
    links = {32: Link(Float32()), **{bits: Link(Danuq(), Fixed(bits)) for bits in (4, 2, 1)}}
    lengths = {bits: link.reply_bytes(bits, ("delta",), schema) for bits, link in links.items()}
    return {
        "reply_bytes": lengths,
        "factor": {bits: lengths[32] / length for bits, length in lengths.items()},
    }


def overhead(folder: Path) -> dict:
    """The share of a resnet8 round that is neither training nor evaluation, on one worker where nothing overlaps."""
    rows = fedwsq(folder / "overhead", "cifar10-resnet8", "rounds=5", "--workers", "1")
    shares = [1 - (r["train_seconds"] + r["eval_seconds"]) / r["seconds"] for r in rows]
    return {
        "share_median": statistics.median(shares),
        "shares": shares,
        "round_seconds": [r["seconds"] for r in rows],
    }


def main() -> None:
    parts = {"size": size, "quickstart": quickstart, "overhead": overhead}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    results = {"cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.parts or parts:
            results[name] = parts[name](Path(folder))
            print(name, json.dumps(results[name], indent=2), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
