"""fedwsq from a user's own script: no `__main__` guard, and code of their own beside it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_SECONDS

PLAIN = """
import fedwsq
small = {"rounds": 3, "training.epochs": 1, "training.batches_per_epoch": 2}
print(fedwsq.run("quickstart", small, out="plain", workers=2, progress=False).weights)
"""

MODULE = """
import torch
from torch import nn
from fedwsq import Dataset, Examples

def build(classes: int, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.ReLU(), nn.Linear(width, classes))

def blobs(count: int = 200) -> Dataset:
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(count) % 3
    x = torch.randn(count, 1, 3, 4, generator=rng) + y.view(-1, 1, 1, 1) * 2
    return Dataset(Examples([x[50:]], y[50:]), Examples([x[:50]], y[:50]), classes=3)
"""

OWN = """
import fedwsq
settings = {
    "rounds": 4,
    "model": {"name": "my_module:build", "width": 16},
    "data.name": "my_module:blobs",
    "data.count": 300,
    "data.partition": "iid",
    "uplink.select": "weights",
    "training.lr": 0.5,
}
for workers in (1, 2):
    out = f"workers-{workers}"
    summary = fedwsq.run("quickstart", settings, out=out, workers=workers, progress=False)
    print(summary.weights, summary.accuracy)
"""


def run_script(folder: Path, name: str, text: str) -> list[str]:
    """Run it from another folder, so that only its own is on the path."""
    (folder / name).write_text(text)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(folder / name)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.slow
def test_a_script_without_a_main_guard_runs_once_and_equals_one_worker(tmp_path, finished):
    assert run_script(tmp_path, "script.py", PLAIN) == [finished.summary.weights]


@pytest.mark.slow
def test_a_model_and_data_in_a_module_beside_the_script_work_with_workers(tmp_path):
    (tmp_path / "my_module.py").write_text(MODULE)
    one_weights, accuracy, two_weights, _ = run_script(tmp_path, "own.py", OWN)
    assert one_weights == two_weights
    assert float(accuracy) > 0.5  # three blobs, well apart: it learns something
    config = (tmp_path / "elsewhere" / "workers-2" / "config.toml").read_text()
    assert 'name = "my_module:build"' in config
    assert "width = 16" in config
