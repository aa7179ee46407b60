"""The figures the README claims of a run as a whole: accuracy, speed, memory and overhead.

    python benchmarks/foundation.py [size] [quickstart] [memory] [overhead] [--json FILE]

`memory` and `overhead` need CIFAR-10 under FEDWSQ_DATA. Without names, all of them run.
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

import psutil

SEEDS = (0, 1, 2)


def fedwsq(out: Path, *words: str) -> list[dict]:
    """Run the command line in a process of its own and return its rows."""
    subprocess.run(
        [sys.executable, "-m", "fedwsq.cli", "run", *words, "--out", str(out)], check=True, stdout=subprocess.DEVNULL
    )
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def quickstart(folder: Path) -> dict:
    """FedWSQ at 4 bits against the same in float32, three seeds each; the first is timed from start to end."""
    began = time.perf_counter()
    coded = [fedwsq(folder / "coded-0", "seed=0")]
    seconds = time.perf_counter() - began
    coded += [fedwsq(folder / f"coded-{seed}", f"seed={seed}") for seed in SEEDS[1:]]
    plain = [fedwsq(folder / f"plain-{seed}", f"seed={seed}", "uplink.codec=float32") for seed in SEEDS]
    last = lambda runs: [rows[-1]["test_accuracy"] for rows in runs]
    rows = [row for run in coded for row in run]
    return {
        "seconds": seconds,
        "accuracy_4bit": last(coded),
        "accuracy_float32": last(plain),
        "mean_4bit": statistics.fmean(last(coded)),
        "mean_float32": statistics.fmean(last(plain)),
        "uplink_factor": sum(r["uplink_bytes_float32"] for r in rows) / sum(r["uplink_bytes"] for r in rows),
    }


def memory(folder: Path) -> dict:
    """Peak memory of a ResNet-18 run with 100 clients on 2 workers: PSS over all its processes, sampled."""
    command = [
        sys.executable,
        "-m",
        "fedwsq.cli",
        "run",
        "cifar10",
        "rounds=1",
        "--workers",
        "2",
        "--out",
        str(folder / "memory"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        total = 0
        for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            try:
                total += each.memory_full_info().pss
            except psutil.Error:
                continue
        peak = max(peak, total)
        time.sleep(0.2)
    row = json.loads((folder / "memory" / "rounds.jsonl").read_text())
    return {"peak_pss_gigabytes": peak / 1e9, "round_seconds": row["seconds"], "exit": process.returncode}


def size(folder: Path) -> dict:
    """Bytes of one client's reply for ResNet-18 at each width: the length of a real message."""
    import torch

    from fedwsq import Danuq, Fixed, Float32, Key, Link, Message, Schema, encode
    from fedwsq.models import resnet18
    from fedwsq.wire import Kind

    schema = Schema({name: tuple(p.shape) for name, p in resnet18().named_parameters()})
    delta = {name: 1e-3 * torch.randn(shape) for name, shape in schema.shapes.items()}
    lengths = {}
    for bits in (32, 4, 2, 1):
        link, key = Link(Float32() if bits == 32 else Danuq(), Fixed(bits)), Key(0, 1, 0)
        sent = link.send({"delta": delta}, link.init(schema, ("delta",)), key, (float(bits),), schema)
        lengths[bits] = len(encode(Message(Kind.REPLY, key, bytes(16), packets=sent.packets), schema))
    return {"reply_bytes": lengths, "factor": {bits: lengths[32] / length for bits, length in lengths.items()}}


def overhead(folder: Path) -> dict:
    """The share of a resnet8 round that is neither training nor evaluation, on one worker where nothing overlaps."""
    rows = fedwsq(folder / "overhead", "cifar10-resnet8", "rounds=5", "--workers", "1")
    shares = [1 - (r["train_seconds"] + r["eval_seconds"]) / r["seconds"] for r in rows]
    return {"share_median": statistics.median(shares), "shares": shares, "round_seconds": [r["seconds"] for r in rows]}


def main() -> None:
    parts = {"size": size, "quickstart": quickstart, "memory": memory, "overhead": overhead}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
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
