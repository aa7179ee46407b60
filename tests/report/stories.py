"""Run directories with a history of one's choice, around the config of a real run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedwsq.federation.record import RoundRecord
from fedwsq.plan import make_plan, plan_settings

MANIFEST = {"format": 2, "commit": "abc", "precision": "float32", "torch": "2", "data": "d"}


def tell(folder: Path, accuracies: Sequence[float], **settings: Any) -> Path:
    """A finished run: 10 bytes up and 30 down a round, smoothed accuracy as the accuracy."""
    plan = make_plan({"method": "fedavg"}, {"rounds": len(accuracies), **settings})
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(plan_settings(plan)))
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    rows = [
        RoundRecord(
            number,
            test_accuracy=accuracy,
            test_accuracy_ema=accuracy,
            uplink_bytes=10,
            downlink_bytes=30,
            replied=1,
            seconds=2.0,
            seed=plan.seed,
        )
        for number, accuracy in enumerate(accuracies, 1)
    ]
    (folder / "rounds.jsonl").write_text("".join(row.line() for row in rows))
    (folder / "summary.json").write_text(json.dumps(summary(accuracies, plan.seed)))
    return folder


def summary(accuracies: Sequence[float], seed: int) -> dict[str, object]:
    last = accuracies[-1]
    return {
        "rounds": len(accuracies),
        "accuracy": last,
        "accuracy_ema": last,
        "best_accuracy": max(accuracies),
        "best_round": 1,
        "uplink_bytes": 10 * len(accuracies),
        "downlink_bytes": 30 * len(accuracies),
        "uplink_factor": 1.0,
        "downlink_factor": 1.0,
        "total_factor": 1.0,
        "seconds": 2.0 * len(accuracies),
        "precision": "float32",
        "seed": seed,
        "weights": "w",
    }


def rewrite(folder: Path, **facts: object) -> None:
    """Other facts in the manifest."""
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, **facts}))
