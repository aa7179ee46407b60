"""The worked examples, run as their first lines say; only for fewer rounds."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import rows

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert [example.stem for example in EXAMPLES] == ["tabular", "text"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_learns(example, tmp_path):
    assert len(example.read_text().splitlines()) < 80
    assert f"python examples/{example.name} [OUT] [ROUNDS]" in example.read_text()
    command = [sys.executable, example, tmp_path / "out", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("test accuracy 0.")
    found = rows(tmp_path / "out")
    assert [row["failures"] for row in found] == [{}] * 3
    assert found[-1]["test_loss"] < found[0]["test_loss"] - 0.04
    assert found[-1]["uplink_bytes"] < found[-1]["uplink_bytes_float32"] / 4


def test_a_benchmark_says_which_parts_it_has():
    command = [sys.executable, Path(__file__).parents[1] / "benchmarks" / "foundation.py", "sise"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid choice: 'sise' (choose from" in done.stderr
