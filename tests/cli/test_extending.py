"""The documented examples of code outside the package, run as they are written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
SMALL = [
    "rounds=4",
    "training.epochs=1",
    "training.batches_per_epoch=2",
    "training.precision=float32",
]


def run(folder, *words):
    command = [sys.executable, "-m", "fedwsq.cli", "run", *words, "--out", "out", "--workers", "2"]
    done = subprocess.run(
        command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "out" / "rounds.jsonl").read_text().splitlines()
    return done.stdout, [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_method_in_one_file(tmp_path):
    assert BLOCKS[0].count("\n") < 40
    (tmp_path / "my_module.py").write_text(BLOCKS[0])
    out, rows = run(tmp_path, "algorithm=my_module:Mine", "algorithm.keep=0.8", *SMALL)
    assert "round 4: moved" in out
    assert [row["failed"] for row in rows] == [0, 0, 0, 0]
    assert '"my_module:Mine"' in (tmp_path / "out" / "config.toml").read_text()


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("sgd", marks=pytest.mark.slow),
        pytest.param("{ name = 'sgd', momentum = 0.9 }", marks=pytest.mark.slow),
        "adamw",
    ],
)
def test_a_regression(tmp_path, optimizer):
    (tmp_path / "my_data.py").write_text(BLOCKS[1])
    _, rows = run(
        tmp_path,
        "data.name=my_data:houses",
        "data.partition=iid",
        "model.name=my_data:net",
        "model.standardize=none",
        "uplink.select=weights",
        "training.criterion=squared_error",
        "metric=minus_squared_error",
        f"training.optimizer={optimizer}",
        "training.lr=0.01",
        "training.precision=float32",
        "rounds=12",
    )
    last = rows[-1]
    assert last["test_accuracy"] is None
    assert last["test_metric"] == pytest.approx(-last["test_loss"], rel=1e-5)
    assert last["test_loss"] < 0.5 * rows[0]["test_loss"]
    assert last["uplink_bytes"] < last["uplink_bytes_float32"]
