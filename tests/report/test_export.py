"""Rows for other programs, read back with those programs."""

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest

from fedwsq.cli import main
from fedwsq.report.trackers import TRACKERS, Subject, scalars
from fedwsq.runs.reading import read_run
from harness import TINY_WORDS, rows, start


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


def test_csv_has_every_row_and_measure(run):
    assert main(["export", str(run), "--to", "csv"]) == 0
    with open(run / "rounds.csv", newline="") as file:
        found = list(csv.DictReader(file))
    for mine, theirs in zip(found, rows(run), strict=True):
        assert mine.keys() == theirs.keys()
        assert float(mine["test_accuracy"]) == theirs["test_accuracy"]
        assert int(mine["uplink_bytes"]) == theirs["uplink_bytes"]
        assert json.loads(mine["class_accuracy"]) == theirs["class_accuracy"]
        assert mine["validation_loss"] == ""


def test_parquet_has_the_same_numbers(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    out = tmp_path / "mine.parquet"
    assert main(["export", str(run), "--to", "parquet", "--out", str(out)]) == 0
    found = parquet.read_table(out).to_pylist()
    for mine, theirs in zip(found, rows(run), strict=True):
        assert mine["test_loss"] == theirs["test_loss"]
        assert json.loads(mine["scale_ratios"]) == theirs["scale_ratios"]


def test_tensorboard_has_every_scalar(run, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["export", str(run), "--to", "tensorboard", "--out", str(tmp_path / "tb")]) == 0
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    found = events.Scalars("test_accuracy")
    assert [event.step for event in found] == [1, 2, 3]
    expected = [row["test_accuracy"] for row in rows(run)]
    assert [event.value for event in found] == pytest.approx(expected)


def test_what_cannot_be_exported_says_so(run, tmp_path, capsys, monkeypatch):
    assert main(["export", str(tmp_path), "--to", "csv"]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "csv", "--out", str(tmp_path / "no" / "x")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", str(run), "--to", "parquet"]) == 2
    assert "pip install 'fedwsq[parquet]'" in capsys.readouterr().err
    (run / "rounds.jsonl").unlink()
    assert main(["export", str(run), "--to", "csv"]) == 2
    assert "has no rows to export" in capsys.readouterr().err


def test_damaged_rows_are_said(run, capsys):
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join([lines[0], "?\n", lines[2]]))
    assert main(["export", str(run), "--to", "csv"]) == 0
    assert "lost or damaged: 1\n" in capsys.readouterr().err


def subject(run: Path) -> Subject:
    found = read_run(run)
    return Subject(run, found.facts.run, found.settings)


@pytest.mark.slow
def test_mlflow_has_every_scalar_and_a_resumed_run_goes_on_in_the_same_place(
    run, tmp_path, monkeypatch
):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    # Its plain files are kept out of its way otherwise; they need no database.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    records = read_run(run).rows
    for part in (records[:1], records[1:]):  # two processes, one after the other
        tracker = TRACKERS["mlflow"](subject(run))
        for record in part:
            tracker.add(record)
        tracker.close()
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedwsq")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["uplink.codec.name"] == "danuq"
    history = client.get_metric_history(found.info.run_id, "test_accuracy")
    assert [(m.step, m.value) for m in history] == [(r.round, r.test_accuracy) for r in records]
    assert set(found.data.metrics) == {name for record in records for name in scalars(record)}


@pytest.mark.slow
def test_wandb_keeps_every_scalar_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = ["run", *TINY_WORDS, "--wandb", "--workers", "1", "--out", "mine"]
    process = start(*words, cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    run = read_run(tmp_path / "mine")
    (log,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    data = log.read_bytes()
    assert run.facts.run.encode() in data
    for name in scalars(run.rows[-1]):
        assert name.encode() in data


def test_a_tracker_that_is_not_installed_is_said_before_there_is_a_directory(
    in_empty_folder, capsys, monkeypatch
):
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        assert main(["run", "rounds=1", f"--{name}", "--out", "mine"]) == 2
        assert f"pip install 'fedwsq[{name}]'" in capsys.readouterr().err
    assert not (in_empty_folder / "mine").exists()
