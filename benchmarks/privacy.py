"""What noise costs: accuracy against epsilon on the quick start, and with more clients.

    python benchmarks/privacy.py [OUT] [--rounds 40] [--runs 3] [--write FILE.md]

The digits of the quick start, as its ten clients with five a round, and as a hundred with fifty;
weight standardization, DANUQ at 4 bits, some runs each, which no seed repeats. `noise` is in units
of the bound on an update's norm. Epsilon at delta 1e-5, the unit is a client: against the server,
and of the models. Runs that are in OUT are not run again.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import fedwsq
from script import parser, report

CLIP = 0.5
NOISES = (0.0, 0.001, 0.003, 0.01, 0.03, 1.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "10 clients, 5 a round": {},
    "100 clients, 50 a round": {"data.clients": 100, "clients_per_round": 50},
}
HEAD = """\
| clients | noise | accuracy | epsilon against the server | epsilon of the models |
|---|---|---|---|---|
"""


def settings(more: dict[str, Any], noise: float | None, rounds: int) -> dict[str, Any]:
    found = {"aggregation": "uniform", "rounds": rounds, "eval_every": rounds, **more}
    if noise is not None:
        found |= {"privacy.clip": CLIP, "privacy.noise": noise}
    return found


def measure(
    out: Path, name: str, noise: float | None, rounds: int, runs: int
) -> tuple[list[float], Any]:
    """The accuracies of all runs, and what the last of them has spent."""
    accuracies = []
    spent: Any = None
    for run in range(runs):
        folder = out / f"{name.split()[0]}-{noise}-{run}"
        if not (folder / "summary.json").exists():
            plan = settings(SETTINGS[name], noise, rounds)
            fedwsq.run("quickstart", {**plan, "seed": run}, out=folder, workers=1, progress=False)
        accuracies.append(json.loads((folder / "summary.json").read_text())["accuracy"])
        if noise is not None:
            spent = json.loads((folder / "privacy.json").read_text())
    return accuracies, spent


def line(name: str, noise: float | None, accuracies: list[float], spent: Any) -> str:
    mean = statistics.fmean(accuracies)
    shown = f"{mean:.3f} ({min(accuracies):.3f} to {max(accuracies):.3f})"
    if noise is None:
        return f"| {name} | no clipping | {shown} | | |\n"
    if not noise:
        return f"| {name} | clipping at {CLIP} alone | {shown} | none | none |\n"
    server = f"{spent['epsilon_server']:.3g}"
    model = f"{spent['epsilon_model']:.3g}"
    return f"| {name} | {noise:g} | {shown} | {server} | {model} |\n"


def main() -> None:
    words = parser(__doc__)
    words.add_argument("out", type=Path, nargs="?", default=Path("runs/privacy"))
    words.add_argument("--rounds", type=int, default=40)
    words.add_argument("--runs", type=int, default=3)
    words.add_argument("--write", type=Path)
    args = words.parse_args()
    text = f"{args.rounds} rounds, {args.runs} runs each: mean (least to most).\n\n{HEAD}"
    for name in SETTINGS:
        for noise in (None, *NOISES):
            text += line(name, noise, *measure(args.out, name, noise, args.rounds, args.runs))
            if args.write:  # what there is, should it be stopped
                args.write.write_text(text)
    report(text, args.write)


if __name__ == "__main__":
    main()
