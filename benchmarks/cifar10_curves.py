"""FedAvg, FedWS and FedWSQ side by side on CIFAR-10: accuracy against rounds and against bytes.

    python benchmarks/cifar10_curves.py DATA_ROOT [OUT] [--rounds 20] [--plot FILE]

The paper's protocol with ResNet-8: 100 clients, 5 a round, Dirichlet 0.3, 5 epochs of 10 batches.
Runs that are in OUT already are not run again. Needs the extra `report` for the plot.
"""

from itertools import accumulate
from pathlib import Path

import fedwsq
from script import Row, parser, rows, total

METHODS = {
    "FedAvg, float32": {"model.standardize": False, "uplink.codec": "float32"},
    "FedWS, float32": {"uplink.codec": "float32"},
    "FedWSQ, 4 bits": {"uplink.bits": 4},
    "FedWSQ, 1 bit": {"uplink.bits": 1},
}


def run_all(data: Path, out: Path, rounds: int) -> dict[str, list[Row]]:
    curves = {}
    for name, settings in METHODS.items():
        folder = out / name.lower().replace(", ", "-").replace(" ", "")
        if not (folder / "rounds.jsonl").exists():
            plan = {**settings, "rounds": rounds, "data.root": str(data)}
            fedwsq.run("cifar10-resnet8", plan, out=folder)
        curves[name] = rows(folder)
    return curves


def table(curves: dict[str, list[Row]]) -> str:
    lines = [
        "| method | accuracy by round (5, 10, 15, 20) | last | up, MB | down, MB | uplink factor |",
        "|---|---|---|---|---|---|",
    ]
    for name, curve in curves.items():
        marks = ", ".join(f"{row['test_accuracy']:.3f}" for row in curve if row["round"] % 5 == 0)
        last = curve[-1]["test_accuracy"]
        up = total(curve, "uplink_bytes")
        down = total(curve, "downlink_bytes")
        factor = total(curve, "uplink_bytes_float32") / up
        traffic = f"{up / 1e6:.2f} | {down / 1e6:.2f} | {factor:.2f}"
        lines.append(f"| {name} | {marks} | {last:.4f} | {traffic} |")
    return "\n".join(lines)


def plot(curves: dict[str, list[Row]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_round, by_bytes) = pyplot.subplots(
        1, 2, figsize=(10, 3.8), sharey=True, layout="constrained"
    )
    for name, curve in curves.items():
        rounds = [row["round"] for row in curve]
        accuracy = [row["test_accuracy"] for row in curve]
        sent = [bytes_ / 1e6 for bytes_ in accumulate(row["uplink_bytes"] for row in curve)]
        by_round.plot(rounds, accuracy, label=name, marker="o", markersize=3)
        by_bytes.plot(sent, accuracy, label=name, marker="o", markersize=3)
    by_round.set(
        xlabel="round",
        ylabel="test accuracy",
        title="CIFAR-10, ResNet-8, 100 clients, Dirichlet 0.3",
    )
    by_bytes.set(
        xlabel="uplink, MB (logarithmic)", xscale="log", title="the same runs against bytes sent up"
    )
    by_round.xaxis.get_major_locator().set_params(integer=True)  # there is no half round
    for axes in (by_round, by_bytes):
        axes.grid(alpha=0.3)
    by_round.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    words = parser(__doc__)
    words.add_argument("data", type=Path)
    words.add_argument("out", type=Path, nargs="?", default=Path("runs/cifar10-curves"))
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--plot", type=Path)
    args = words.parse_args()
    curves = run_all(args.data, args.out, args.rounds)
    print(table(curves))
    if args.plot:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
