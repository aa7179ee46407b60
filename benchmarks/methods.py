"""Every method on CIFAR-10, side by side: accuracy, time and bytes after a few rounds.

    python benchmarks/methods.py DATA_ROOT [OUT] [--rounds 15] [--write FILE]

Accuracy and bytes come from whole runs. Times come from single clients: one of FedAvg's, one of the
method's, in turn, three times, so that a busy machine slows both alike; the median ratio counts.

ResNet-8, the first 25,000 training images over 20 clients, 5 a round, Dirichlet 0.3, reduced local
work: one epoch of 25 batches of 50. One seed and few rounds: differences of a few hundredths are
noise. Runs that are in OUT already are not run again.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import torch

import fedwsq
from fedwsq.data.cifar10 import cifar10
from fedwsq.federation.simulation import simulate
from fedwsq.plan import METHODS, load_plan
from fedwsq.training.precision import resolve_precision

CPU = torch.device("cpu")


def half_of_cifar10(root: str = "") -> fedwsq.Dataset:
    whole = cifar10(root)
    x, y = whole.train.take(torch.arange(25_000))
    return replace(whole, train=fedwsq.Examples([x], y))


SETTING = {
    "data.name": "methods:half_of_cifar10",
    "data.clients": 20,
    "data.partition": {"name": "dirichlet", "alpha": 0.3},
    "clients_per_round": 5,
    "training.epochs": 1,
    "training.batch_size": 50,
    "eval_every": 15,
}
NOTE = (
    "One seed, few rounds, half of CIFAR-10: differences of a few hundredths in accuracy are noise."
)


def run_all(data: Path, out: Path, rounds: int) -> dict[str, list[dict]]:
    results = {}
    for name in METHODS:
        rows = out / name / "rounds.jsonl"
        if not rows.exists():
            plan = {**SETTING, "method": name, "rounds": rounds, "data.root": str(data)}
            summary = fedwsq.run("cifar10-resnet8", plan, out=out / name)
            print(f"{name}: accuracy {summary.accuracy:.4f}, {summary.seconds:.0f} s", flush=True)
        results[name] = [json.loads(line) for line in rows.read_text().splitlines()]
    return results


def time_all(data: Path) -> dict[str, float]:
    """Training time of one client against FedAvg's, each on one thread."""
    more = {"clients_per_round": 1, "eval_every": 1000, "rounds": 1000, "data.root": str(data)}
    servers = {}
    for name in METHODS:
        plan = load_plan("cifar10-resnet8", {**SETTING, **more, "method": name})
        precision = resolve_precision(plan.training.precision, CPU)
        plan = replace(plan, training=replace(plan.training, precision=precision))
        simulation = simulate(plan)
        servers[name] = simulation.server(simulation.serial(CPU))
        servers[name].step()  # warm up
    seconds = lambda name: servers[name].step().train_seconds
    return {
        name: statistics.median(seconds(name) / seconds("fedavg") for _ in range(3))
        for name in METHODS
    }


def table(results: dict[str, list[dict]], times: dict[str, float]) -> str:
    base = results["fedavg"]
    lines = [
        "| method | accuracy | of FedAvg's | training time of FedAvg's | up, MB | down, MB |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in results.items():
        accuracy = rows[-1]["test_accuracy"]
        up, down = (sum(row[f"{way}link_bytes"] for row in rows) / 1e6 for way in ("up", "down"))
        share = accuracy / base[-1]["test_accuracy"]
        lines.append(
            f"| {name} | {accuracy:.4f} | {share:.2f} | {times[name]:.2f} | {up:.2f} | {down:.2f} |"
        )
    return "\n".join([*lines, "", NOTE]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/methods"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    text = table(run_all(args.data, args.out, args.rounds), time_all(args.data))
    print(text)
    if args.write:
        args.write.write_text(text)


if __name__ == "__main__":
    main()
