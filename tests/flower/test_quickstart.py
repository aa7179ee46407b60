"""The example with the two lines, through a real SuperLink and real SuperNodes."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

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
