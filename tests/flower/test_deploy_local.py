"""`fedwsq deploy local`: the weights of one process, and nothing left of many."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

import fedwsq
from harness import rows

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SHORT = ["training.epochs=1", "training.batches_per_epoch=2"]


def command(folder, *words):
    program = [sys.executable, "-m", "fedwsq", "deploy", "local", "--nodes", "2"]
    return [*program, "--out", str(folder), *words, *SHORT]


def started(folder, *words, **settings):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    environment |= settings
    return subprocess.Popen(
        command(folder, *words), env=environment, stdout=subprocess.PIPE, text=True
    )


def left(folder):
    """Processes that have to do with a folder: by their arguments, environment or directory."""
    found = []
    for process in psutil.process_iter():
        try:
            told = " ".join([*process.cmdline(), *process.environ().values()])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if str(folder) in told:
            found.append(process)
    return found


def test_it_ends_with_the_weights_of_one_process(tmp_path):
    folder = tmp_path / "many"
    # A path of pytest's would be too long for a socket.
    with tempfile.TemporaryDirectory() as scratch:
        with started(folder, "--tls", "rounds=2", TMPDIR=scratch) as many:
            printed = many.stdout.read()
        assert list(Path(scratch).iterdir()) == []
    assert many.returncode == 0, printed
    assert printed.count("\nflower-supernode --superlink 127.0.0.1:") == 2
    assert "\nround 2/2: accuracy 0." in printed
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert f"weights {summary['weights']}" in printed
    assert [row["failures"] for row in rows(folder / "run")] == [{}, {}]

    settings = ["rounds=2", "data.clients=2", "clients_per_round=2", *SHORT]
    alone = fedwsq.run("quickstart", settings, out=tmp_path / "alone", workers=1)
    assert summary["weights"] == alone.summary.weights
    assert not left(folder)


def test_a_node_is_killed_and_then_everything_is_stopped(tmp_path):
    folder = tmp_path / "many"
    with started(folder, "rounds=1000") as many:
        for line in many.stdout:
            if line.startswith("round 1/"):
                break
        nodes = [each for each in left(folder) if "--node-config" in each.cmdline()]
        (node,) = [each for each in nodes if "client=1" in each.cmdline()[-1]]
        node.kill()
        for line in many.stdout:
            if line.startswith("node-1 was ended by SIGKILL"):
                break
        many.send_signal(signal.SIGINT)
        printed = many.stdout.read()
    assert many.returncode == 130
    assert "stopped, and all that was started; " in printed
    assert f"go on with: fedwsq deploy local --nodes 2 --out {folder} rounds=1000" in printed
    assert not left(folder)
