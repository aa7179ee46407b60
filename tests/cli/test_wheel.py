"""The built wheel, alone in another folder, runs: configs and everything else travel in it."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness import rows, tiny_words

ROOT = Path(__file__).parents[2]
OFFLINE = (
    "NewConnectionError",
    "Could not find a version that satisfies the requirement hatchling",
)


def pip(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode and any(sign in done.stderr for sign in OFFLINE):
        pytest.skip("hatchling is not installed and pip cannot fetch it here")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_wheel_runs_on_its_own(tmp_path, finished):
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    pip("wheel", ".", "--no-deps", *isolation, "--wheel-dir", str(tmp_path / "dist"))
    (wheel,) = (tmp_path / "dist").glob("fedwsq-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "fedwsq/configs/quickstart.toml" in names
    assert "fedwsq/py.typed" in names
    assert not [name for name in names if name.startswith("tests")]
    pip("install", str(wheel), "--no-deps", "--target", str(tmp_path / "site"))

    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import fedwsq; print(fedwsq.__file__)"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(tmp_path / "site"))  # and not the checkout
    words = ["run", *tiny_words(rounds=2), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fedwsq.cli", *words],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    mine = [row["test_loss"] for row in rows(empty / "runs" / "quickstart-1")]
    theirs = [row["test_loss"] for row in rows(finished.folder)]
    assert mine == theirs[:2]
    assert (tmp_path / "site" / "bin" / "fedwsq").exists()
