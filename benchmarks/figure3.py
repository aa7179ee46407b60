"""What `fedwsq analyze` found in the runs of figure3_grid.toml: a table, a file, a picture.

    fedwsq sweep benchmarks/figure3_grid.toml data.root=DIR --workers 1 --out runs/figure3
    fedwsq analyze runs/figure3/* --out runs
    python benchmarks/figure3.py runs/figure3 --write benchmarks/results/figure3.json \
--plot docs/figure3.png

Curvature and landscapes of FedAvg, FedSMOO, FedACG, FedWon and FedWSQ on CIFAR-10 with ResNet-8,
Dirichlet 0.3, and how normal their updates are: the paper's figure 3, and what is behind its code.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedwsq.analysis.pictures import COORDINATES, draw_errors, draw_kurtosis
from script import Row, parser, rows

METHODS = ("fedavg", "fedsmoo", "fedacg", "fedwon", "fedwsq")
SHOWN = ("fedavg", "fedwon", "fedwsq")  # without and with standardized weights
DIGITS = 4


def read(run: Path) -> dict[str, Any]:
    """The analyses of a run by name."""
    return {path.stem: json.loads(path.read_text()) for path in (run / "analysis").glob("*.json")}


def summary(run: Path) -> Row:
    """The figures of one run, as far as it was analysed."""
    last = rows(run)[-1]
    figures = {
        "rounds": last["round"],
        "test_accuracy": last["test_accuracy"],
        "test_loss": last["test_loss"],
    }
    for name, found in read(run).items():
        figures |= PARTS[name](found) if name in PARTS else {}
    return figures


def curvature(found: Row) -> Row:
    return {
        "top_eigenvalue": {name: found[name]["eigenvalues"] for name in COORDINATES},
        "residual": {name: found[name]["residuals"] for name in COORDINATES},
        "products": {name: found[name]["products"] for name in COORDINATES},
        "curvature_examples": found["examples"],
    }


def landscape(found: Row) -> Row:
    kept = {name: found[name] for name in ("examples", "steps", "centre", "loss")}
    steps = [step for step in found["steps"] if step > 0]
    return {"landscape": kept, "rise": {f"{step:.2f}": rise(found, step) for step in steps}}


def updates(found: Row) -> Row:
    return {
        "updates": found["source"],
        "kurtosis": by_round(found, lambda kept: kept["kurtosis"]),
        "equal_bytes": by_round(found, lambda kept: kept["equal_bytes"]),
    }


def drift(found: Row) -> Row:
    return {"cosine_to_mean": by_round(found, lambda kept: np.mean(kept["all"]["cosine"]))}


def gradients(found: Row) -> Row:
    layers = found["layers"].values()
    parts = ("weight", "ones", "removed")
    return {"gradient_share": {part: np.mean([layer[part] for layer in layers]) for part in parts}}


PARTS = {
    "hessian": curvature,
    "landscape": landscape,
    "updates": updates,
    "drift": drift,
    "gradients": gradients,
}


def by_round(found: Row, of: Any) -> Row:
    return {number: of(kept) for number, kept in found["rounds"].items()}


def rise(landscape: Row, far: float) -> float:
    """How much higher the loss is, in the mean, on the square so far from the centre."""
    steps = np.abs(landscape["steps"])
    distance = np.maximum(steps[:, None], steps[None, :])
    loss = np.array(landscape["loss"], np.float64)
    return float(np.nanmean(loss[np.isclose(distance, far, atol=1e-6)]) - landscape["centre"])


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value


def table(runs: dict[str, Row]) -> str:
    lines = [
        "| method | accuracy | eigenvalue, raw | effective | relative | loss, centre | rise, near "
        "| rise, far | kurtosis by round |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        tops = run.get("top_eigenvalue", {})
        cells = [f"{tops[each][0]:.3g}" if tops.get(each) else "" for each in COORDINATES]
        centre = run.get("landscape", {}).get("centre", np.nan)
        rises = list(run.get("rise", {"": np.nan}).values())
        cells += [f"{each:.3g}" for each in (centre, rises[0], rises[-1])]
        kurtoses = run.get("kurtosis", {})
        cells.append(", ".join(f"{number}: {each:.1f}" for number, each in kurtoses.items()))
        lines.append(f"| {name} | {run['test_accuracy']:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def codec_table(runs: dict[str, Row]) -> str:
    """Errors at equal bytes by round, of the plain model and of the standardized one."""
    shown = [name for name in SHOWN if "equal_bytes" in runs.get(name, {})]
    numbers = list(runs[shown[0]]["equal_bytes"])
    head = [f"{name}, round {number}" for name in shown for number in numbers]
    lines = [f"| bits | codec | {' | '.join(head)} |", "|---" * (2 + len(head)) + "|"]
    for bits in ("1", "2", "4"):
        columns = [runs[name]["equal_bytes"][n][bits]["errors"] for name in shown for n in numbers]
        for codec in sorted(columns[0], key=lambda each: columns[0][each]):
            cells = [f"{column[codec]:.3g}" if codec in column else "" for column in columns]
            lines.append(f"| {bits} | {codec} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(runs: dict[str, Row], updates: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(2.4 * len(runs), 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    contours(above, runs)
    sharpness, kurtosis, errors = below.subplots(1, 3)
    names = list(runs)
    width = 0.8 / len(COORDINATES)
    for number, each in enumerate(COORDINATES):
        found = [run.get("top_eigenvalue", {}).get(each) or [np.nan] for run in runs.values()]
        places = np.arange(len(names)) + number * width
        sharpness.bar(places, [tops[0] for tops in found], width, label=each)
    sharpness.set_xticks(np.arange(len(names)) + width, names, rotation=45)
    sharpness.set(yscale="log", ylabel="largest Hessian eigenvalue")
    sharpness.legend(fontsize="x-small", title="coordinates", title_fontsize="x-small")
    draw_kurtosis(kurtosis, updates)
    kurtosis.legend(fontsize="x-small")
    draw_errors(errors, updates)
    figure.savefig(path, dpi=110)


def contours(figure: Any, runs: dict[str, Row]) -> None:
    """What the loss rises by, on one scale: models differ in their loss at the centre."""
    found = {}
    for name, run in runs.items():
        landscape = run.get("landscape")
        if landscape is None:
            continue
        found[name] = np.array(landscape["loss"], np.float64) - landscape["centre"]
    low = min(float(np.nanmin(each)) for each in found.values())
    high = max(float(np.nanquantile(each, 0.6)) for each in found.values())
    cells = figure.subplots(1, len(found), sharey=True)
    for axes, (name, loss) in zip(cells, found.items(), strict=True):
        steps = runs[name]["landscape"]["steps"]
        levels = np.linspace(low, high, 16)
        drawn = axes.contourf(steps, steps, np.minimum(loss, high).T, levels, cmap="viridis")
        axes.set(title=name, xlabel="first direction")
    cells[0].set_ylabel("second direction")
    figure.colorbar(drawn, ax=cells[-1], label="loss above the centre's")


def main() -> None:
    words = parser(__doc__)
    words.add_argument("runs", type=Path)
    words.add_argument("--write", type=Path)
    words.add_argument("--plot", type=Path)
    args = words.parse_args()
    folders = {name: args.runs / name for name in METHODS if (args.runs / name).is_dir()}
    found = {name: rounded(summary(folder)) for name, folder in folders.items()}
    print(table(found), codec_table(found), sep="\n\n")
    if args.write:
        args.write.write_text(json.dumps(found, indent=1) + "\n")
    if args.plot:
        every = {name: read(folder).get("updates") for name, folder in folders.items()}
        plot(found, {name: each for name, each in every.items() if each}, args.plot)


if __name__ == "__main__":
    main()
