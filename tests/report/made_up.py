"""Run directories without runs: real configs, manifests and rows, whose numbers are made up.

    python tests/report/made_up.py FOLDER [--rounds 1000] [--seeds 4]

Only for looking at pages and measuring them: nothing here was trained.
"""

import argparse
import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedwsq.federation.record import RoundRecord
from fedwsq.plan import Plan, dump_plan, load_plan, plan_digest

PARAMETERS = 78_000
METHODS: Mapping[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedws": {"method": "fedws"},
    "fedwsq-4": {"uplink.bits": 4},
    "fedwsq-1": {"uplink.bits": 1},
    "ecq": {"uplink.codec": "ecq", "uplink.bits": 0.5, "downlink.codec": "ecq"},
}
# How good each gets, and how fast.
SKILL = {"fedavg": 0.62, "fedws": 0.74, "fedwsq-4": 0.73, "fedwsq-1": 0.69, "ecq": 0.71}


def make_runs(
    folder: Path, rounds: int, seeds: int, methods: Iterable[str] = METHODS
) -> list[Path]:
    """A run of each method and seed."""
    found = []
    for name in methods:
        for seed in range(seeds):
            run = folder / f"{name}-{seed}"
            make_run(run, name, rounds, seed)
            found.append(run)
    return found


def make_run(folder: Path, name: str, rounds: int, seed: int) -> None:
    overrides = {"seed": seed, "rounds": rounds, "channels": "lognormal", **METHODS[name]}
    plan = load_plan("cifar10-resnet8", overrides)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump_plan(plan))
    manifest = {"format": 2, "fedwsq": "0.2.0", "config": plan_digest(plan), "seed": seed}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    rows = make_rows(plan, SKILL[name])
    (folder / "rounds.jsonl").write_text("".join(row.line() for row in rows))
    (folder / "summary.json").write_text(summary(rows, seed))


def make_rows(plan: Plan, skill: float) -> list[RoundRecord]:
    dice = random.Random(plan.seed)
    bits = getattr(plan.uplink.bits, "bits", 32)
    down = getattr(plan.downlink.bits, "bits", 32)
    average = 0.1
    rows = []
    for number in range(1, plan.rounds + 1):
        grown = skill * (1 - math.exp(-4 * (number / plan.rounds) ** 0.6)) + 0.1
        accuracy = min(1.0, max(0.0, grown + dice.gauss(0, 0.02)))
        average = accuracy if number == 1 else 0.9 * average + 0.1 * accuracy
        failed = number % 25 == 7
        rows.append(
            RoundRecord(
                number,
                test_accuracy=accuracy,
                test_accuracy_ema=average,
                test_loss=2.3 * (1 - accuracy),
                class_accuracy=[min(1.0, accuracy * (0.7 + 0.06 * k)) for k in range(10)],
                client_accuracy=accuracy - 0.03,
                client_accuracy_worst_decile=accuracy / 2,
                train_loss=2.0 * (1 - accuracy) + dice.gauss(0, 0.05) ** 2,
                uplink_bytes=int(5 * PARAMETERS * bits / 8) + 2000,
                downlink_bytes=int(5 * PARAMETERS * down / 8) + 2000,
                uplink_bytes_float32=20 * PARAMETERS,
                downlink_bytes_float32=20 * PARAMETERS,
                sampled=5,
                replied=5 - failed,
                failed=int(failed),
                failures={"7": "RuntimeError: out of memory"} if failed else {},
                bits=float(bits),
                scale_ratio=1 + dice.gauss(0, 0.1),
                quantization_error=0.36 / bits**1.8 * (1 + dice.gauss(0, 0.05)),
                seconds=1.0,
                simulated_seconds=2.0 + bits / 8 + dice.random(),
                seed=plan.seed,
                config=plan_digest(plan),
            )
        )
    return rows


def summary(rows: list[RoundRecord], seed: int) -> str:
    """As far as anybody reads it."""
    best = max(rows, key=lambda row: row.test_accuracy or 0)
    found = {
        "rounds": rows[-1].round,
        "accuracy": rows[-1].test_accuracy,
        "accuracy_ema": rows[-1].test_accuracy_ema,
        "best_accuracy": best.test_accuracy,
        "best_round": best.round,
        "uplink_bytes": sum(row.uplink_bytes for row in rows),
        "downlink_bytes": sum(row.downlink_bytes for row in rows),
        "uplink_factor": 1.0,
        "downlink_factor": 1.0,
        "total_factor": 1.0,
        "seconds": float(len(rows)),
        "precision": "float32",
        "seed": seed,
        "weights": "",
    }
    return json.dumps(found)


def make_findings(run: Path, shift: float = 0.0) -> None:
    """What `fedwsq analyze` would leave, as far as pages read it."""
    steps = [-1.0, -0.5, 0.0, 0.5, 1.0]
    loss = [[1.5 + shift + a * a + 2 * b * b for b in steps] for a in steps]
    top = {"eigenvalues": [27.25 + shift], "residuals": [1e-4], "converged": True, "products": 41}
    errors = {"danuq": 0.043, "ecq": 0.0049, "uq": 0.165}
    equal = {"4": {"bits": 4.003, "bytes": 1000, "errors": errors}}
    kept = {str(n): {"kurtosis": 18.0 / n + shift, "equal_bytes": equal} for n in (1, 5, 15)}
    apart = {str(n): {"all": {"cosine": [0.5, 0.7], "norm": [1.5, 1.7]}} for n in (1, 5, 15)}
    scales = {str(n): {"median": 1.1, "expected_error": 0.012} for n in range(2, 16)}
    found = {
        "hessian": {"examples": 500, "raw": top, "effective": top, "relative": top},
        "landscape": {"examples": 500, "data": "test", "steps": steps, "loss": loss},
        "updates": {"source": "before they were coded", "rounds": kept},
        "drift": {"rounds": apart},
        "gradients": {"layers": {"stem.weight": {"weight": [0.04, 0.02], "ones": [0.7, 0.72]}}},
        "scales": {"right_scale_error": 0.01, "rounds": scales},
    }
    (run / "analysis").mkdir()
    for name, each in found.items():
        (run / "analysis" / f"{name}.json").write_text(json.dumps(each))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    make_runs(args.folder, args.rounds, args.seeds)
