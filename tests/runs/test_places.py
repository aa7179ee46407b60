"""Where files lie is not what a run depends on: it is resumed from anywhere, and after a move."""

import numpy as np
import pytest

from fedwsq.cli import main
from fedwsq.core.errors import RunError
from fedwsq.plan import load_plan, locate, places
from fedwsq.runs import Run
from harness import rows, timeless, tiny_words

TRACE = "client,up_bytes_per_second,down_bytes_per_second\n0,1e6,1e7\n"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with some data and a trace, beside another folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (120, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "here" / "data.npz", x=x, y=np.arange(120) % 3)
    (tmp_path / "here" / "trace.csv").write_text(TRACE)
    return tmp_path


def begin(*more, rounds=3):
    words = [
        "run",
        *tiny_words(rounds=rounds),
        "data={name='npz', path='data.npz', clients=5}",
        "channels={name='trace', path='trace.csv'}",
    ]
    assert main([*words, "--workers", "1", *more]) == 0


def test_a_run_is_resumed_from_any_folder(work, monkeypatch):
    begin("--out", "whole")
    begin("--out", "part", rounds=1)
    monkeypatch.chdir(work / "there")
    part = work / "here" / "part"
    assert main(["resume", str(part), "rounds=3", "--workers", "1"]) == 0
    whole = work / "here" / "whole"
    one, two = ([timeless(row) | {"config": ""} for row in rows(run)] for run in (part, whole))
    assert one == two


def test_moved_files_are_named_when_resuming(work, capsys):
    begin("--out", "run", rounds=1)
    (work / "here" / "data.npz").rename(work / "there" / "elsewhere.npz")
    assert main(["resume", "run", "rounds=2"]) == 2
    assert "data.npz" in capsys.readouterr().err
    moved = ["rounds=2", "data.path=../there/elsewhere.npz"]
    assert main(["resume", "run", *moved, "--workers", "2"]) == 0
    assert [row["round"] for row in rows(work / "here" / "run")] == [1, 2]
    assert len({row["config"] for row in rows(work / "here" / "run")}) == 1
    # For that time only: the config is the run's, and whole.
    assert places(load_plan("run/config.toml"))["data.path"] == str(work / "here" / "data.npz")


def test_other_data_in_the_place_is_refused(work, capsys):
    begin("--out", "run", rounds=1)
    np.savez("other.npz", x=np.zeros((120, 1, 8, 8), np.uint8), y=np.arange(120) % 2)
    assert main(["resume", "run", "rounds=2", "data.path=other.npz"]) == 2
    assert "not what the run began with" in capsys.readouterr().err


def test_a_changed_trace_is_refused_and_a_moved_one_is_not(work):
    begin("--out", "run", rounds=1)
    (work / "there" / "trace.csv").write_text(TRACE)
    (work / "here" / "trace.csv").write_text(TRACE.replace("1e6", "2e6"))
    with (
        pytest.raises(RunError, match=r"trace .*trace\.csv was changed"),
        Run.resume(work / "here" / "run", {"rounds": 2}),
    ):
        pass
    moved = {"rounds": 2, "channels.path": "../there/trace.csv"}
    with Run.resume(work / "here" / "run", moved) as run:
        assert run.go().rounds == 2


def test_places_are_written_in_full(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    plan = locate(
        load_plan("cifar10", {"data.root": "~/data", "model.init": "a/../start.safetensors"})
    )
    assert places(plan) == {
        "data.root": "/home/somebody/data",
        "model.init": str(tmp_path / "a/../start.safetensors"),
    }
    assert locate(plan) is plan
    # $FEDWSQ_DATA is asked wherever the run is resumed.
    assert places(locate(load_plan("cifar10"))) == {}
