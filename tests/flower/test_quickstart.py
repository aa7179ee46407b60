"""The example with the two lines, through a real SuperLink and real SuperNodes."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from in_process import InProcess

import fedwsq
from fedwsq.core.threads import one_thread

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "flower_quickstart.py"


def test_two_lines_and_the_traffic_falls(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, SCRIPT, "--nodes", "2", "--rounds", "1", "0:0", "1:4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    plain, few = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]
    ]
    assert plain[:2] == ["32", "32"]
    assert few[:2] == ["1", "4"]
    _, _, _, fewer_up, _, fewer_down, accuracy = map(float, (x.replace(",", "") for x in few))
    assert fewer_up > 25
    assert fewer_down > 7
    assert accuracy > 0.2  # a tenth is what a guess has

    # Whatever was started knew this folder.
    told = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in told if str(tmp_path) in words]


def test_accuracy_stays(monkeypatch):
    """Twelve rounds of the same apps, without their processes."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower_quickstart"))
    from digits_app.client_app import app
    from digits_app.server_app import evaluate
    from digits_app.task import Net

    def accuracy(compressed):
        torch.manual_seed(0)
        grid = InProcess(dict.fromkeys(range(3), app))
        for node, context in grid.contexts.items():
            context.node_config = {"partition-id": node, "num-partitions": 3}
            context.run_config = {"local-epochs": 2, "learning-rate": 0.05}
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
        if compressed:
            strategy = fedwsq.flower.compress(strategy, "danuq", bits=1, down_bits=4)
        start = ArrayRecord(Net().state_dict())
        found = strategy.start(grid, start, num_rounds=12, evaluate_fn=evaluate)
        return found.evaluate_metrics_serverapp[12]["test-accuracy"]

    with one_thread():
        plain = accuracy(compressed=False)
        compressed = accuracy(compressed=True)
    assert plain > 0.95
    assert compressed > plain - 0.02
