"""Sweeps: real runs in real directories, stopped and taken up again."""

import json
import shutil
from pathlib import Path

import psutil
import pytest

from fedwsq.core.errors import RunError
from fedwsq.plan.grid import read_grid
from fedwsq.runs import Run
from fedwsq.runs.directory import locked
from fedwsq.runs.sweep import CLAIM, Place, Sweep
from harness import gone, rows, start, tiny, tiny_words, wait_until

WORDS = tiny_words(rounds=2)


class Quiet:
    """A witness that remembers, and presses Ctrl-C when asked to."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop_after = stop_after
        self.began: list[str] = []
        self.rounds = 0
        self.errors: dict[str, str] = {}

    def on_begin(self, place: Place, run: Run) -> None:
        self.began.append(place.cell.name)

    def on_client(self, finished: int, asked: int) -> None:
        pass

    def on_round(self, record) -> None:
        self.rounds += 1
        if self.rounds == self.stop_after:
            raise KeyboardInterrupt

    def on_end(self, place: Place, error: str) -> None:
        if error:
            self.errors[place.cell.name] = error


def sweep(out: Path, *words: str, workers: int = 1) -> Sweep:
    return Sweep(read_grid([*WORDS, *words]).cells(), out, workers)


def weights(folder: Path) -> str:
    return json.loads((folder / "summary.json").read_text())["weights"]


def standings(places: list[Place]) -> dict[str, str]:
    return {place.cell.name: place.standing for place in places}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, str]:
    """The same cells, each run by itself in one process."""
    found = {}
    for method in ("fedavg", "feddyn", "fedwsq"):
        folder = tmp_path_factory.mktemp("alone") / "run"
        with Run.create(tiny(rounds=2, method=method), folder, workers=1) as run:
            found[method] = run.go().weights
    return found


def test_cells_share_workers_and_have_the_weights_of_the_same_run_alone(alone, tmp_path):
    witness = Quiet()
    ended = sweep(tmp_path, "method=fedavg,feddyn,fedwsq", workers=2).go(witness)
    assert standings(ended) == dict.fromkeys(alone, "finished")
    assert {name: weights(tmp_path / name) for name in alone} == alone


def test_a_sweep_that_was_stopped_goes_on_where_it_was(alone, tmp_path):
    cells = sweep(tmp_path, "method=fedavg,fedwsq")
    with pytest.raises(KeyboardInterrupt):
        cells.go(Quiet(stop_after=3))
    assert standings(cells.places()) == {"fedavg": "finished", "fedwsq": "partial"}
    again = Quiet()
    ended = cells.go(again)
    assert (again.began, again.rounds) == (["fedwsq"], 1)
    assert standings(ended) == {"fedavg": "finished", "fedwsq": "finished"}
    assert weights(tmp_path / "fedwsq") == alone["fedwsq"]


def test_a_cell_is_known_by_its_settings_and_not_by_its_name(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "fedavg")  # it is FedWSQ
    cells = Sweep(read_grid([*tiny_words(rounds=3), "method=fedavg"]).cells(), tmp_path, 1)
    (place,) = cells.places()
    assert (place.standing, place.folder.name) == ("new", "cell")
    own = Sweep(read_grid(tiny_words(rounds=3)).cells(), tmp_path, 1)
    (place,) = own.places()
    assert (place.standing, place.folder.name) == ("finished", "fedavg")


def test_more_rounds_go_on_with_finished_cells_and_fewer_leave_them(alone, finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "mine")
    shorter = Sweep(read_grid(tiny_words(rounds=2)).cells(), tmp_path, 1)
    assert [place.standing for place in shorter.places()] == ["finished"]
    longer = Sweep(read_grid(tiny_words(rounds=4)).cells(), tmp_path, 1)
    witness = Quiet()
    (ended,) = longer.go(witness)
    assert (witness.rounds, ended.standing, ended.done) == (1, "finished", 4)


def test_a_cell_that_fails_is_reported_and_tried_again_on_request(tmp_path):
    cells = sweep(tmp_path, "model.name=user_code:failing_cnn,cnn", "clients_per_round=2")
    witness = Quiet()
    ended = cells.go(witness)
    assert list(standings(ended).values()) == ["failed", "finished"]
    (error,) = witness.errors.values()
    assert "without a reply" in error
    assert ended[0].reading is not None
    assert ended[0].reading.error == error
    later = Quiet()
    cells.go(later)
    assert later.began == []
    cells.go(later, retry=True)
    assert later.began == [ended[0].cell.name]


def test_a_cell_that_cannot_begin_does_not_stop_the_others(in_empty_folder):
    cells = sweep(in_empty_folder / "out", "data.name=cifar10,digits", "data.clients=10")
    witness = Quiet()
    (bad, good) = cells.go(witness)
    assert (bad.standing, good.standing) == ("new", "finished")
    assert "cifar" in witness.errors[bad.cell.name].lower()


def test_a_cell_that_another_process_works_on_is_left_to_it(tmp_path):
    cells = sweep(tmp_path, "method=fedavg,fedwsq")
    (tmp_path / "fedavg").mkdir()
    with locked(tmp_path / "fedavg", CLAIM):
        ended = cells.go(Quiet())
    assert standings(ended) == {"fedavg": "elsewhere", "fedwsq": "finished"}


def test_a_run_that_is_resumed_by_hand_is_left_alone_too(finished, tmp_path):
    folder = Path(shutil.copytree(finished.folder, tmp_path / "mine"))
    cells = Sweep(read_grid(tiny_words(rounds=4)).cells(), tmp_path, 1)
    with locked(folder):
        (place,) = cells.go(Quiet())
    assert place.standing == "elsewhere"


def test_a_damaged_run_is_not_written_over(finished, tmp_path):
    folder = Path(shutil.copytree(finished.folder, tmp_path / "mine"))
    (folder / "manifest.json").write_text("{")
    cells = Sweep(read_grid(tiny_words(rounds=3)).cells(), tmp_path, 1)
    (place,) = cells.go(Quiet())
    assert (place.standing, place.folder) == ("damaged", folder)
    assert (folder / "manifest.json").read_text() == "{"


def test_a_run_that_lost_its_config_is_not_begun_anew(finished, tmp_path):
    folder = Path(shutil.copytree(finished.folder, tmp_path / "cell"))
    (folder / "config.toml").unlink()
    before = (folder / "rounds.jsonl").read_bytes()
    cells = Sweep(read_grid(tiny_words(rounds=3)).cells(), tmp_path, 1)
    for retry in (False, True):
        (place,) = cells.go(Quiet(), retry)
        assert (place.folder, place.standing) == (folder, "damaged")
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_a_cells_folder_that_holds_other_things_is_left_alone(tmp_path):
    (tmp_path / "fedavg").mkdir()
    (tmp_path / "fedavg" / "notes.txt").touch()
    witness = Quiet()
    ended = sweep(tmp_path, "method=fedavg,fedwsq").go(witness)
    assert standings(ended) == {"fedavg": "new", "fedwsq": "finished"}
    assert "is not empty: it holds notes.txt; choose" in witness.errors["fedavg"]
    assert not (tmp_path / "fedavg" / "error.txt").exists()


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot create"):
        sweep(tmp_path / "file", "method=fedavg").go(Quiet())


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_to_the_same_weights(alone, tmp_path):
    words = ["sweep", *WORDS, "method=fedavg,feddyn,fedwsq", "--out", "all", "--workers", "2"]
    out = tmp_path / "all"
    process = start(*words, cwd=tmp_path)
    wait_until(lambda: rows(out / "feddyn"), process=process)
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    wait_until(lambda: all(map(gone, workers)))
    assert not (out / "fedwsq").exists() or not rows(out / "fedwsq")
    process = start(*words, cwd=tmp_path)
    text, _ = process.communicate()
    assert process.returncode == 0, text
    assert "1 of 3 cells are finished already" in text
    assert {name: weights(out / name) for name in alone} == alone
