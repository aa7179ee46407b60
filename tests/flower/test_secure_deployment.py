"""Secure sums over a real SuperLink with TLS: three nodes, each with keys of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwsq[flower]'")
pytest.importorskip("Crypto", reason="needs the extra: pip install 'fedwsq[secure]'")

import fedwsq
from harness import rows

pytestmark = pytest.mark.slow  # a process for every message: 3 nodes, 18 messages each
ROOT = Path(__file__).parents[2]
SHORT = ["rounds=2", "training.epochs=1", "training.batches_per_epoch=2"]
COUNTED = ["method=fedwsq-secure", "uplink.secure=false", "uplink.counts=true"]


def test_three_nodes_give_the_weights_of_the_plain_run(tmp_path):
    folder = tmp_path / "many"
    words = ["deploy", "local", "--nodes", "3", "--tls", "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "fedwsq", *words, "method=fedwsq-secure", *SHORT],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(folder / "run")
    assert [row["replied"] for row in found] == [3, 3]
    summary = json.loads((folder / "run" / "summary.json").read_text())

    settings = [*COUNTED, *SHORT, "data.clients=3", "clients_per_round=3"]
    plain = fedwsq.run("quickstart", settings, out=tmp_path / "alone", workers=1)
    assert summary["weights"] == plain.summary.weights
