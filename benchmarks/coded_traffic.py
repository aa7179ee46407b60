"""Error feedback and coded downlinks, on real training.

    python benchmarks/coded_traffic.py DATA_ROOT [OUT] [--write benchmarks/results/coded_traffic.md]

Feedback and accuracy: ResNet-8 with weight standardization on the first 10,000 images of CIFAR-10, 20 clients, 5 a
round, Dirichlet 0.3, one epoch of ten batches of 50 a client, 20 rounds; three seeds. Feedback also with all of 5
clients, 500 images each, and every tensor coded. Accuracy, on 5,000 images, is the mean of rounds 15 and 20. The uplink
is DANUQ at 4 bits unless the table says otherwise. Participation: the digits and the network of the quick start over
100 clients, two batches each, 20 rounds. Runs that are in OUT are not run again.
"""

import argparse
import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import fedwsq
from fedwsq.data.cifar10 import cifar10

SEEDS = (0, 1, 2)
CHANNEL = {"name": "uq", "rounding": "nearest", "scales": "channel"}
REST = {"select": "weights", "rest": "danuq8"}
DOWNLINKS: dict[str, dict[str, Any]] = {
    "float32": {},
    "model, 8 bits": {"downlink": {"codec": CHANNEL, "bits": 8, "mode": "model", **REST}},
    "model, 4 bits": {"downlink": {"codec": CHANNEL, "bits": 4, "mode": "model", **REST}},
    "chain, 4 bits": {"downlink": {"codec": "danuq", "bits": 4, "mode": "chain", **REST}},
    "chain, 2 bits": {"downlink": {"codec": "danuq", "bits": 2, "mode": "chain", **REST}},
    "chain, 1 bit": {"downlink": {"codec": "danuq", "bits": 1, "mode": "chain", **REST}},
}
CIFAR_DOWNLINKS = ("float32", "model, 8 bits", "chain, 4 bits")
FEEDBACK = {
    "sign": {"uplink": {"codec": "sign"}},
    "sign with error feedback": {"uplink": {"codec": "sign", "error_feedback": True}},
}


def part_of_cifar10(root: str = "") -> fedwsq.Dataset:
    return cut(root, 10_000)


def quarter_of_the_part(root: str = "") -> fedwsq.Dataset:
    return cut(root, 2_500)


def cut(root: str, train_images: int) -> fedwsq.Dataset:
    whole = cifar10(root)
    parts = ((whole.train, train_images), (whole.test, 5_000))
    train, test = (
        fedwsq.Examples([x], y) for x, y in (part.take(torch.arange(n)) for part, n in parts)
    )
    return replace(whole, train=train, test=test)


FEEDBACK_ALL = {
    "float32": {"uplink": {"codec": "float32"}},
    "sign of everything": {"uplink": {"codec": "sign", "select": "all"}},
    "sign of everything with error feedback": {
        "uplink": {"codec": "sign", "select": "all", "error_feedback": True}
    },
}
LITTLE = {"training.epochs": 1, "training.batches_per_epoch": 2}
ALL = {"data.name": "coded_traffic:quarter_of_the_part", "data.clients": 5}


def cifar(data: Path, rounds: int) -> dict[str, Any]:
    return {
        "method": "fedwsq",
        "data.name": "coded_traffic:part_of_cifar10",
        "data.root": str(data),
        "data.clients": 20,
        "clients_per_round": 5,
        "training.epochs": 1,
        "training.batch_size": 50,
        "rounds": rounds,
        "eval_every": 5,
    }


def run(config: str, settings: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    rows = out / "rounds.jsonl"
    if not (out / "model.safetensors").exists():
        shutil.rmtree(out, ignore_errors=True)  # a run that was cut off
        summary = fedwsq.run(config, settings, out=out)
        print(f"{out.name}: accuracy {summary.accuracy:.4f}, {summary.seconds:.0f} s", flush=True)
    return [json.loads(line) for line in rows.read_text().splitlines()]


def accuracy(rows: list[dict[str, Any]]) -> float:
    return statistics.fmean(row["test_accuracy"] for row in rows[-6::5])


def compare(
    title: str, choices: dict[str, dict[str, Any]], base: dict[str, Any], out: Path
) -> list[str]:
    """One line a choice: accuracy of each seed, the mean, and the traffic of seed 0."""
    lines = [
        f"| {title} | accuracy, seeds 0, 1, 2 | mean | up, MB | down, MB |",
        "|---|---|---|---|---|",
    ]
    for name, settings in choices.items():
        found = [
            run(
                "cifar10-resnet8",
                {**base, **settings, "seed": seed},
                out / f"{title}-{name}-{seed}".replace(" ", ""),
            )
            for seed in SEEDS
        ]
        values = [accuracy(rows) for rows in found]
        up, down = (
            sum(row[f"{way}link_bytes"] for row in found[0]) / 1e6 for way in ("up", "down")
        )
        each = ", ".join(f"{value:.4f}" for value in values)
        lines.append(
            f"| {name} | {each} | {statistics.fmean(values):.4f} | {up:.2f} | {down:.2f} |"
        )
    return [*lines, ""]


def participation(out: Path) -> list[str]:
    lines = [
        "| participation | downlink | down a client and round, kB | of float32 | accuracy after 20 rounds |",
        "|---|---|---|---|---|",
    ]
    for count in (5, 50, 100):
        for name, settings in DOWNLINKS.items():
            plan = {
                "data.clients": 100,
                "clients_per_round": count,
                "rounds": 20,
                "eval_every": 20,
                **LITTLE,
                **settings,
            }
            rows = run("quickstart", plan, out / f"participation-{count}-{name}".replace(" ", ""))
            asked = sum(row["sampled"] - row["sat_out"] for row in rows)
            sent, plain = (
                sum(row[key] for row in rows)
                for key in ("downlink_bytes", "downlink_bytes_float32")
            )
            score = rows[-1]["test_accuracy"]
            lines.append(
                f"| {count} % | {name} | {sent / asked / 1e3:.1f} | {sent / plain:.2f} | {score:.3f} |"
            )
    return [*lines, ""]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/coded-traffic"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(
        [
            *compare("uplink, 5 of 20 clients", FEEDBACK, cifar(args.data, args.rounds), args.out),
            *compare(
                "uplink, all of 5 clients",
                FEEDBACK_ALL,
                {**cifar(args.data, args.rounds), **ALL},
                args.out,
            ),
            *compare(
                "downlink",
                {name: DOWNLINKS[name] for name in CIFAR_DOWNLINKS},
                cifar(args.data, args.rounds),
                args.out,
            ),
            *participation(args.out),
        ]
    )
    print(text)
    if args.write:
        args.write.write_text(text)
