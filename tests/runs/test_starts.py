"""A run that was stopped before its first round, or that nobody answered."""

import sys

import pytest
import torch

from fedwsq import run
from fedwsq.cli import main
from fedwsq.core.errors import ConfigError, DataError, RunError
from fedwsq.data import Dataset
from fedwsq.data.dataset import Examples
from fedwsq.runs import Run
from fedwsq.runs.directory import free_folder
from harness import rows, tiny, tiny_words


def test_a_run_stopped_before_its_first_round_is_resumed(tmp_path):
    whole = run(tiny(), out=tmp_path / "whole", workers=1)
    with Run.create(tiny(), tmp_path / "run", workers=1):
        pass  # killed while its workers start
    with Run.resume(tmp_path / "run", workers=1) as resumed:
        assert resumed.go().weights == whole.weights


def test_a_start_that_came_to_nothing_is_started_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def stop(plan):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # Just before the config is written.
        patch.setattr(sys.modules[Run.__module__], "dump_plan", stop)
        with pytest.raises(KeyboardInterrupt), Run.create(tiny(seed=5), folder, workers=1):
            pass
    assert (folder / "manifest.json").exists()
    with (
        pytest.raises(
            RunError, match=r"was stopped before its run began; start it again: fedwsq run --out"
        ),
        Run.resume(folder),
    ):
        pass
    other = run(tiny(), out=tmp_path / "other", workers=1)
    assert run(tiny(), out=folder, workers=1).weights == other.weights
    assert not (folder / ".starting").exists()


def test_a_folder_of_other_things_is_refused_and_an_empty_one_taken(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    words = ["run", *tiny_words(rounds=1), "--workers", "1", "--out", str(folder)]
    for name in ("notes.txt", "data"):
        (folder / name).mkdir()
    assert main(words) == 2
    why = f"fedwsq: {folder} is not empty: it holds data and 1 more; choose a new folder\n"
    assert capsys.readouterr().err == why
    with pytest.raises(RunError, match="it holds data and 1 more"):
        run(tiny(), out=folder, workers=1)
    assert sorted(path.name for path in folder.iterdir()) == ["data", "notes.txt"]

    for name in ("notes.txt", "data"):
        (folder / name).rmdir()
    assert main(words) == 0


def test_what_an_earlier_start_left_is_in_nobodys_way(tmp_path):
    for name in (".lock", ".sweep", "error.txt", ".error.txt.tmp"):
        (tmp_path / name).touch()
    assert run(tiny(rounds=1), out=tmp_path, workers=1).rounds
    assert not (tmp_path / "error.txt").exists()


@pytest.mark.parametrize("out", ["", " "])
def test_an_empty_out_is_refused(in_empty_folder, capsys, out):
    """`--out "$RUNS"` of a variable that is not set."""
    for verb in ("run", "sweep"):
        assert main([verb, *tiny_words(rounds=1), "--out", out]) == 2
        assert capsys.readouterr().err.startswith("fedwsq: out is empty; name a folder")
    with pytest.raises(ConfigError, match="out is empty; name a folder"):
        run(tiny(), out=out)
    assert list(in_empty_folder.iterdir()) == []


def test_a_run_that_nobody_answered_has_failed(tmp_path, capsys):
    words = [*tiny_words(rounds=2), "training.lr=1e30", "--workers", "1"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 2
    why = "2 rounds in a row without a reply; the last reason was: UpdateError"
    assert why in capsys.readouterr().err
    assert [row["replied"] for row in rows(tmp_path / "run")] == [0, 0]


def test_a_plan_takes_no_overrides(tmp_path):
    with pytest.raises(ConfigError, match=r"a plan is changed with dataclasses\.replace"):
        run(tiny(), {"rounds": 7}, out=tmp_path / "run")


def test_two_runs_that_start_at_once_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert [str(free_folder("mine")) for _ in range(2)] == ["runs/mine-1", "runs/mine-2"]
    assert main(["run", "data.clients=0"]) == main(["run", "data={name='npz', path='no.npz'}"]) == 2
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine-1", "mine-2"]


def odd_data(top: int = 2, tests: int = 5) -> Dataset:
    """Three classes, or so it says."""
    x = torch.zeros(30, 1, 8, 8, dtype=torch.uint8)
    y = torch.arange(30) % (top + 1)
    return Dataset(Examples([x], y), Examples([x[:tests]], y[:tests]), 3)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"top": 3}, "a training label is 3, but .* 3 classes, 0 to 2"),
        ({"tests": 0}, "hold some of the others out"),
    ],
)
def test_data_that_no_run_can_use_is_refused_before_there_is_a_folder(tmp_path, settings, why):
    data = {"name": "test_starts:odd_data", "clients": 5, **settings}
    with pytest.raises(DataError, match=why):
        run("quickstart", {"data": data}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    data = {"name": "test_starts:odd_data", "clients": 5, "tests": 0, "validation": 0.2}
    held_out = run(tiny(data=data), out=tmp_path / "b", workers=1)
    assert held_out.accuracy is not None
