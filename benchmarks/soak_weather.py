"""What `soak.py` and `soak_run.py` share: how often what goes wrong, in which run."""

import json
from pathlib import Path
from typing import Any

# Each client's reply has one of these fates, else it arrives as it was sent.
REPLY_RATES = {
    "drop": 0.02,
    "delay to the end of the round": 0.05,
    "delay to a later round": 0.01,
    "duplicate": 0.03,
    "damage": 0.02,
    "hostile": 0.04,
}
ROUND_RATES = {"strangers": 0.02, "kill a worker": 0.005, "stop a worker": 0.001}

SETTINGS: dict[str, Any] = {
    "rounds": 10**6,
    "clients_per_round": 6,
    "min_replies": 2,
    "deadline": 3600.0,
    "patience": 120.0,
    "eval_every": 25,
    "data": {
        "name": "synthetic",
        "samples": 400,
        "test_samples": 200,
        "clients": 20,
        "partition": "dirichlet",
    },
    "model.name": "fedwsq.bench.round:small",
    "training.epochs": 1,
    "training.batches_per_epoch": 2,
    "training.lr": 0.01,
    "uplink.bits": 2,
    "uplink.error_feedback": True,
}


def read_judged(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a kill may cut one short."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
