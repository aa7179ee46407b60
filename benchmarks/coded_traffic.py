"""Error feedback and coded downlinks, on real training.

    python benchmarks/coded_traffic.py DATA_ROOT [OUT] [--write benchmarks/results/coded_traffic.md]

Feedback and accuracy: ResNet-8 with weight standardization on the first 10,000 images of CIFAR-10,
20 clients, 5 a round, Dirichlet 0.3, one epoch of ten batches of 50 a client, 20 rounds; three
seeds. Feedback also with all of 5 clients, 500 images each, and every tensor coded. Accuracy, on
5,000 images, is the mean of rounds 15 and 20. The uplink is DANUQ at 4 bits unless the table says
otherwise. Participation: the digits and the network of the quick start over 100 clients, two
batches each, 20 rounds. Runs that are in OUT are not run again.
"""

import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import fedwsq
from fedwsq.data.cifar10 import cifar10
from script import Row, parser, report, rows, total

SEEDS = (0, 1, 2)
CHANNEL = {"name": "uq", "rounding": "nearest", "scale_per": "channel"}
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
    train = first(whole.train, train_images)
    return replace(whole, train=train, test=first(whole.test, 5_000))


def first(examples: fedwsq.Examples, count: int) -> fedwsq.Examples:
    x, y = examples.take(torch.arange(count))
    return fedwsq.Examples([x], y)


FEEDBACK_ALL = {
    "float32": {"uplink": {"codec": "float32"}},
    "sign of everything": {"uplink": {"codec": "sign", "select": "all"}},
    "sign of everything with error feedback": {
        "uplink": {"codec": "sign", "select": "all", "error_feedback": True}
    },
}
HUNDRED = {
    "data.clients": 100,
    "rounds": 20,
    "eval_every": 20,
    "training.epochs": 1,
    "training.batches_per_epoch": 2,
}
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


def run(config: str, settings: dict[str, Any], out: Path) -> list[Row]:
    if not (out / "model.safetensors").exists():
        shutil.rmtree(out, ignore_errors=True)  # a run that was cut off
        summary = fedwsq.run(config, settings, out=out)
        print(f"{out.name}: accuracy {summary.accuracy:.4f}, {summary.seconds:.0f} s", flush=True)
    return rows(out)


def accuracy(rounds: list[Row]) -> float:
    return statistics.fmean(row["test_accuracy"] for row in rounds[-6::5])


def compare(
    title: str, choices: dict[str, dict[str, Any]], base: dict[str, Any], out: Path
) -> list[str]:
    """One line a choice: accuracy of each seed, the mean, and the traffic of seed 0."""
    lines = [
        f"| {title} | accuracy, seeds 0, 1, 2 | mean | up, MB | down, MB |",
        "|---|---|---|---|---|",
    ]
    for name, settings in choices.items():
        found = []
        for seed in SEEDS:
            folder = out / f"{title}-{name}-{seed}".replace(" ", "")
            found.append(run("cifar10-resnet8", {**base, **settings, "seed": seed}, folder))
        values = [accuracy(rounds) for rounds in found]
        each = ", ".join(f"{value:.4f}" for value in values)
        mean = statistics.fmean(values)
        up = total(found[0], "uplink_bytes") / 1e6
        down = total(found[0], "downlink_bytes") / 1e6
        lines.append(f"| {name} | {each} | {mean:.4f} | {up:.2f} | {down:.2f} |")
    return [*lines, ""]


def participation(out: Path) -> list[str]:
    lines = [
        "| participation | downlink | down a client and round, kB "
        "| of float32 | accuracy after 20 rounds |",
        "|---|---|---|---|---|",
    ]
    for count in (5, 50, 100):
        for name, settings in DOWNLINKS.items():
            folder = out / f"participation-{count}-{name}".replace(" ", "")
            plan = {**HUNDRED, "clients_per_round": count, **settings}
            found = run("quickstart", plan, folder)
            asked = total(found, "sampled") - total(found, "sat_out")
            sent = total(found, "downlink_bytes")
            each = sent / asked / 1e3
            share = sent / total(found, "downlink_bytes_float32")
            score = found[-1]["test_accuracy"]
            lines.append(f"| {count} % | {name} | {each:.1f} | {share:.2f} | {score:.3f} |")
    return [*lines, ""]


if __name__ == "__main__":
    words = parser(__doc__)
    words.add_argument("data", type=Path)
    words.add_argument("out", type=Path, nargs="?", default=Path("runs/coded-traffic"))
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--write", type=Path)
    args = words.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    base = cifar(args.data, args.rounds)
    downlinks = {name: DOWNLINKS[name] for name in CIFAR_DOWNLINKS}
    lines = compare("uplink, 5 of 20 clients", FEEDBACK, base, args.out)
    lines += compare("uplink, all of 5 clients", FEEDBACK_ALL, {**base, **ALL}, args.out)
    lines += compare("downlink", downlinks, base, args.out)
    lines += participation(args.out)
    report("\n".join(lines), args.write)
