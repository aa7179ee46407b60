import json
import shutil
from pathlib import Path

import pytest

from fedwsq.core.errors import ConfigError, RunError
from fedwsq.report.page import Followed
from fedwsq.runs import Run
from fedwsq.runs.reading import read_run, read_runs
from harness import tiny


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


def change_rows(folder: Path, change) -> None:
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(change(lines)))


def test_a_finished_run_is_told_as_it_is(finished):
    run = read_run(finished.folder)
    assert (run.state, run.problems, run.error) == ("finished", (), "")
    assert run.summary == finished.summary
    assert [row.round for row in run.rows] == [1, 2, 3]
    assert (run.damaged_rows, run.missing_rows) == (0, 0)
    assert (run.seed, run.rounds, run.metric) == (0, 3, "accuracy")
    assert run.settings["uplink.codec.name"] == "danuq"
    assert run.settings["data.partition.alpha"] == 0.3
    assert run.facts.precision == finished.summary.precision
    assert run.facts.torch
    assert len(run.facts.data) == len(run.facts.config) * 2 == 32


def test_a_run_that_was_stopped_is_partial(copy):
    (copy / "summary.json").unlink()
    change_rows(copy, lambda lines: [lines[0], lines[1][:40]])
    run = read_run(copy)
    assert (run.state, len(run.rows), run.damaged_rows) == ("partial", 1, 0)


def test_a_finished_run_that_was_asked_for_more_rounds_is_partial(copy):
    path = copy / "config.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    assert read_run(copy).state == "partial"


def test_a_run_that_stopped_early_because_it_was_good_enough_is_finished(tmp_path):
    with Run.create(tiny(stop_at_accuracy=0.01), tmp_path / "run", workers=1) as run:
        run.go()
    found = read_run(tmp_path / "run")
    assert (found.state, len(found.rows)) == ("finished", 1)


def test_a_run_that_gave_up_says_why_until_it_goes_on(tmp_path):
    folder = tmp_path / "run"

    def stop(record):
        raise ConfigError("not \x1b[31mtoday")

    with pytest.raises(ConfigError), Run.create(tiny(), folder, workers=1) as run:
        run.go([stop])
    found = read_run(folder)
    assert (found.state, found.error) == ("failed", "not \\x1b[31mtoday")
    assert len(found.rows) == 1
    with Run.resume(folder, workers=1) as run:
        run.go()
    assert read_run(folder).state == "finished"


def test_ctrl_c_is_no_failure(tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Run.create(tiny(), tmp_path / "run", workers=1) as run:
        run.go([stop])
    assert read_run(tmp_path / "run").state == "partial"


@pytest.mark.parametrize(
    "line",
    [
        "not json\n",
        "[1]\n",
        '{"round": "2"}\n',
        '{"round": true}\n',
        '{"round": 2, "test_accuracy": "<b>"}\n',
        '{"round": 2, "test_accuracy": NaN}\n',
        '{"round": 2, "failures": {"3": 4}}\n',
        '{"round": 2, "class_accuracy": [0.5, null]}\n',
        '{"round": 99999999999999999999999}\n',
        '{"round": 1}\n',
        f"{'[' * 100_000}\n",
    ],
)
def test_damaged_rows_are_left_out_and_counted(copy, line):
    change_rows(copy, lambda lines: [lines[0], line, lines[2]])
    run = read_run(copy)
    assert [row.round for row in run.rows] == [1, 3]
    assert (run.damaged_rows, run.missing_rows) == (1, 1)
    assert run.state == "finished"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", "rounds ="),
        ("config.toml", 'rounds = "3"'),
        ("manifest.json", "{"),
        ("manifest.json", "[]"),
        ("summary.json", '{"rounds": 3}'),
    ],
)
def test_a_damaged_file_is_named(copy, name, text):
    (copy / name).write_text(text)
    run = read_run(copy)
    assert run.state == "damaged"
    assert run.problems[0].startswith(f"{name} cannot be read")
    assert len(run.rows) == 3


def test_a_config_is_read_and_nothing_in_it_imported(copy):
    path = copy / "config.toml"
    path.write_text(path.read_text().replace('name = "cnn"', 'name = "no_such_module:Net"'))
    assert read_run(copy).settings["model.name"] == "no_such_module:Net"


def test_a_folder_of_runs_stands_for_them(finished, copy):
    shutil.copytree(finished.folder, copy.parent / "a")
    (copy.parent / "other").mkdir()
    # The second is in the first, and is one run.
    assert [run.name for run in read_runs([copy.parent, copy])] == ["a", "run"]
    with pytest.raises(RunError, match="holds none"):
        read_runs([copy.parent / "other"])


def test_runs_are_found_in_folders_of_folders(finished, tmp_path):
    top = tmp_path / "runs"
    for place in ("größe/日本/run", "one", "sweep/b", "sweep/a", "sweep/.old", "a/b/c/too-deep"):
        shutil.copytree(finished.folder, top / place)
    # In a run: what an analysis has repeated is no run of its own.
    shutil.copytree(finished.folder, top / "one" / "analysis" / "repeat-1")
    (top / "sweep" / "back").symlink_to(top)  # would have no end
    (top / "linked").symlink_to(finished.folder)  # a run by another name
    found = [run.folder.relative_to(top) for run in read_runs([top])]
    assert list(map(str, found)) == ["größe/日本/run", "linked", "one", "sweep/a", "sweep/b"]
    assert [run.name for run in read_runs([top])] == ["run", "linked", "one", "a", "b"]


def test_runs_of_one_name_are_called_by_where_they_are(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("first/fedavg", "second/fedavg", "second/fedwsq"):
        shutil.copytree(finished.folder, tmp_path / "runs" / place)
    named = lambda *given: [run.name for run in read_runs(map(Path, given))]
    assert named("runs") == ["first/fedavg", "second/fedavg", "fedwsq"]
    assert named("runs/first", "runs/second") == [
        "runs/first/fedavg",
        "runs/second/fedavg",
        "fedwsq",
    ]
    assert named("runs/first/fedavg", "runs/second") == [
        "runs/first/fedavg",
        "fedavg",
        "fedwsq",
    ]
    assert named("runs/second", "runs") == ["fedavg", "fedwsq", "first/fedavg"]


def test_a_page_that_follows_runs_finds_and_names_them_as_well(finished, tmp_path):
    for place in ("first/mine", "second/mine"):
        shutil.copytree(finished.folder, tmp_path / place)
    page = Followed([tmp_path]).page().decode()
    assert "first/mine" in page
    assert "second/mine" in page


def test_the_manifest_may_say_anything(copy):
    path = copy / "manifest.json"
    path.write_text(json.dumps({"precision": 7, "commit": "abc", "more": []}))
    run = read_run(copy)
    assert (run.state, run.facts.precision, run.facts.commit) == ("finished", "", "abc")
