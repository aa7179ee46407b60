"""FedAvg, FedWS and FedWSQ side by side on CIFAR-10: accuracy against rounds and against bytes.

    python benchmarks/cifar10_curves.py DATA_ROOT [OUT] [--rounds 20] [--plot FILE]

The paper's protocol with ResNet-8: 100 clients, 5 a round, Dirichlet 0.3, 5 epochs of 10 batches. Runs that are in OUT
already are not run again. Needs the extra `report` for the plot.
"""

import argparse
import json
from pathlib import Path

import fedwsq

METHODS = {
    "FedAvg, float32": {"model.standardize": False, "uplink.codec": "float32"},
    "FedWS, float32": {"uplink.codec": "float32"},
    "FedWSQ, 4 bits": {"uplink.bits": 4},
    "FedWSQ, 1 bit": {"uplink.bits": 1},
}


def run_all(data: Path, out: Path, rounds: int) -> dict[str, list[dict]]:
    curves = {}
    for name, settings in METHODS.items():
        folder = out / name.lower().replace(", ", "-").replace(" ", "")
        if not (folder / "rounds.jsonl").exists():
            fedwsq.run(
                "cifar10-resnet8",
                {**settings, "rounds": rounds, "data.root": str(data)},
                out=folder,
            )
        curves[name] = [
            json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()
        ]
    return curves


def table(curves: dict[str, list[dict]]) -> str:
    lines = [
        "| method | accuracy by round (5, 10, 15, 20) | last | up, MB | down, MB | uplink factor |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in curves.items():
        marks = ", ".join(f"{row['test_accuracy']:.3f}" for row in rows if row["round"] % 5 == 0)
        up, down = sum(r["uplink_bytes"] for r in rows), sum(r["downlink_bytes"] for r in rows)
        factor = sum(r["uplink_bytes_float32"] for r in rows) / up
        lines.append(
            f"| {name} | {marks} | {rows[-1]['test_accuracy']:.4f} | {up / 1e6:.2f} | {down / 1e6:.2f} | {factor:.2f} |"
        )
    return "\n".join(lines)


def plot(curves: dict[str, list[dict]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_round, by_bytes) = pyplot.subplots(
        1, 2, figsize=(10, 3.8), sharey=True, layout="constrained"
    )
    for name, rows in curves.items():
        accuracy = [row["test_accuracy"] for row in rows]
        sent, total = [], 0
        for row in rows:
            total += row["uplink_bytes"]
            sent.append(total / 1e6)
        by_round.plot(
            [row["round"] for row in rows], accuracy, label=name, marker="o", markersize=3
        )
        by_bytes.plot(sent, accuracy, label=name, marker="o", markersize=3)
    by_round.set(
        xlabel="round",
        ylabel="test accuracy",
        title="CIFAR-10, ResNet-8, 100 clients, Dirichlet 0.3",
    )
    by_bytes.set(
        xlabel="uplink, MB (logarithmic)", xscale="log", title="the same runs against bytes sent up"
    )
    for axes in (by_round, by_bytes):
        axes.grid(alpha=0.3)
    by_round.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/cifar10-curves"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    curves = run_all(args.data, args.out, args.rounds)
    print(table(curves))
    if args.plot:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
