import os
import subprocess
import sys
import textwrap

import pytest

import fedwsq


def test_all_is_sorted_and_complete():
    assert fedwsq.__all__ == sorted(fedwsq.__all__)
    public = {
        name
        for name, value in vars(fedwsq).items()
        if not name.startswith("_") and not _is_module(value)
    }
    assert public == set(fedwsq.__all__)


def test_importing_needs_no_optional_package():
    code = (
        "import sys; import fedwsq; "
        "heavy = ('sklearn', 'flwr', 'matplotlib', 'tensorboard', 'rich'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_example_of_the_package_runs_as_written(in_empty_folder, monkeypatch):
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: {0}, raising=False
    )  # one core, so no other processes
    names = {}
    exec(textwrap.dedent(fedwsq.__doc__.partition("\n")[2]), names)
    assert (names["summary"].rounds, names["packet"].numel) == (1, 1000)
    assert (in_empty_folder / "runs" / "mine" / "model.safetensors").is_file()
    error = (names["restored"] - names["x"]).square().mean() / names["x"].square().mean()
    assert error == pytest.approx(0.0097, rel=0.4)  # of the 4-bit levels, on N(0, 1)


def _is_module(value):
    return type(value).__name__ == "module"
