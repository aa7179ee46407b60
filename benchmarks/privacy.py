"""What noise costs: accuracy against epsilon, on digits with a linear model.

    python benchmarks/privacy.py [OUT] [--rounds 40] [--runs 3] [--write FILE.md]

A hundred clients with skewed classes, fifty a round, DANUQ at 4 bits, some runs each, which no seed
repeats. 650 parameters: the noise in an update grows with the root of their number, and a model of
thousands learns nothing at an epsilon that means something. `noise` is in units of the bound on an
update's norm. Epsilon at delta 1e-5, the unit is a client: against the server, who sees every
message, and of the models, which hold only sums. Runs that are in OUT are not run again.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import fedwsq
from attacks import LINEAR
from script import parser, report

CLIP = 0.3  # half of the updates are longer in the first rounds, few in the last
NOISES = (0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
SETTINGS: dict[str, Any] = {
    **LINEAR,
    "data.clients": 100,
    "clients_per_round": 50,
    "training.epochs": 1,
    "aggregation": "uniform",
}
HEAD = """\
| noise | accuracy | epsilon against the server | epsilon of the models |
|---|---|---|---|
"""


def measure(out: Path, noise: float | None, rounds: int, runs: int) -> tuple[list[float], Any]:
    """The accuracies of all runs, and what the last of them has spent."""
    settings = {**SETTINGS, "rounds": rounds, "eval_every": rounds}
    if noise is not None:
        settings |= {"privacy.clip": CLIP, "privacy.noise": noise}
    accuracies = []
    spent: Any = None
    for run in range(runs):
        folder = out / f"{noise}-{run}"
        if not (folder / "summary.json").exists():
            fedwsq.run(
                "quickstart", {**settings, "seed": run}, out=folder, workers=1, progress=False
            )
        accuracies.append(json.loads((folder / "summary.json").read_text())["accuracy"])
        if noise is not None:
            spent = json.loads((folder / "privacy.json").read_text())
    return accuracies, spent


def line(noise: float | None, accuracies: list[float], spent: Any) -> str:
    mean = statistics.fmean(accuracies)
    shown = f"{mean:.3f} ({min(accuracies):.3f} to {max(accuracies):.3f})"
    if noise is None:
        return f"| no clipping | {shown} | none | none |\n"
    if not noise:
        return f"| clipping at {CLIP} alone | {shown} | none | none |\n"
    server = f"{spent['epsilon_server']:.3g}"
    model = f"{spent['epsilon_model']:.3g}"
    return f"| {noise:g} | {shown} | {server} | {model} |\n"


def main() -> None:
    words = parser(__doc__)
    words.add_argument("out", type=Path, nargs="?", default=Path("runs/privacy"))
    words.add_argument("--rounds", type=int, default=40)
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--write", type=Path)
    args = words.parse_args()
    text = f"{args.rounds} rounds, {args.runs} runs each: mean (least to most).\n\n{HEAD}"
    for noise in (None, *NOISES):
        text += line(noise, *measure(args.out, noise, args.rounds, args.runs))
        if args.write:  # what there is, should it be stopped
            args.write.write_text(text)
    report(text, args.write)


if __name__ == "__main__":
    main()
