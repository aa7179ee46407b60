"""The same promises on real images: three rounds of CIFAR-10 with ResNet-8. Needs FEDWSQ_DATA."""

import csv
import os
import signal
import time
from functools import partial

import psutil
import pytest

from fedwsq.cli import main
from fedwsq.core.errors import DataError
from fedwsq.data import DATASETS
from fedwsq.plan.grid import read_grid
from fedwsq.runs import Run, Summary, load_snapshot, run
from fedwsq.runs.sweep import Sweep
from harness import gone, rows, start, timeless, wait_until

REDUCED = {"rounds": 3, "training.epochs": 1, "training.batches_per_epoch": 4}


@pytest.fixture(scope="module", autouse=True)
def _data():
    if not os.environ.get("FEDWSQ_DATA"):
        pytest.skip("FEDWSQ_DATA is not set: it names the folder that holds cifar-10-batches-bin")
    try:
        DATASETS["cifar10"]()
    except DataError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> tuple[Summary, list]:
    folder = tmp_path_factory.mktemp("cifar") / "run"
    summary = run("cifar10-resnet8", REDUCED, out=folder, workers=1)
    return summary, [timeless(row) for row in rows(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_weights(serial, tmp_path, workers):
    found = run("cifar10-resnet8", REDUCED, out=tmp_path / "run", workers=workers)
    assert found.weights == serial[0].weights
    assert [timeless(row) for row in rows(tmp_path / "run")] == serial[1]


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_a_round_goes_on_to_the_same_weights(serial, tmp_path):
    folder = tmp_path / "run"
    words = [f"{key}={value}" for key, value in REDUCED.items()]
    words += ["--out", str(folder), "--workers", "2"]
    process = start("run", "cifar10-resnet8", *words, cwd=tmp_path)
    wait_until(lambda: len(rows(folder)) == 1, process=process)
    time.sleep(0.3)
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    wait_until(lambda: all(map(gone, workers)))
    process.communicate()
    assert len(rows(folder)) < 3
    assert load_snapshot(folder / "checkpoints")[0].round < 3
    with Run.resume(folder, workers=2) as opened:
        assert opened.go().weights == serial[0].weights
    assert [timeless(row) for row in rows(folder)] == serial[1]


class Interrupting:
    """A witness of a sweep that presses Ctrl-C after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_begin(self, place, run) -> None:
        pass

    def on_client(self, finished: int, asked: int) -> None:
        pass

    def on_round(self, record) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def on_end(self, place, error: str) -> None:
        assert not error


@pytest.mark.slow
def test_a_cell_of_a_sweep_that_was_stopped_twice_has_the_weights_of_the_run_alone(
    serial, tmp_path
):
    words = [f"{key}={value}" for key, value in REDUCED.items()]
    cells = read_grid(["cifar10-resnet8", *words, "seed=1,0"]).cells()
    sweep = Sweep(cells, tmp_path, workers=2)
    for rounds in (2, 2):
        with pytest.raises(KeyboardInterrupt):
            sweep.go(Interrupting(rounds))
    ended = sweep.go(Interrupting(0))
    assert [place.standing for place in ended] == ["finished", "finished"]
    assert [timeless(row) for row in rows(tmp_path / "seed-0")] == serial[1]
    assert rows(tmp_path / "seed-0")[-1]["weights"] == serial[0].weights


# Four settings by two seeds, and as little work in each as there can be: 8 cells of 2 rounds.
EIGHT = ["method=fedavg,fedws,fedwsq", "uplink.bits=1,4", "seed=0,1"]
LITTLE = {
    "rounds": 2,
    "clients_per_round": 2,
    "training.epochs": 1,
    "training.batches_per_epoch": 2,
    "eval_every": 2,
}


@pytest.mark.slow
def test_eight_cells_stopped_twice_are_compared_tabled_and_reported(tmp_path, capsys):
    out = tmp_path / "eight"
    common = ["cifar10-resnet8", *(f"{key}={value}" for key, value in LITTLE.items())]
    words = ["sweep", *common, *EIGHT, "--out", str(out), "--workers", "2"]
    for middle in ("fedavg_seed-0", "fedws_seed-0"):  # the first cell, and the third
        process = start(*words, cwd=tmp_path)
        wait_until(partial(rows, out / middle), process)
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate()
        assert process.returncode == 130, errors
        assert "of 8 cells are finished" in text
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "of 8 cells are finished already" in shown
    assert sorted(len(rows(folder)) for folder in out.iterdir()) == [2] * 8

    same = {**LITTLE, "method": "fedwsq", "uplink.bits": 1, "seed": 0}
    alone = run("cifar10-resnet8", same, out=tmp_path / "alone", workers=1)
    assert rows(out / "fedwsq_bits-1_seed-0")[-1]["weights"] == alone.weights

    assert main(["compare", str(out), "--format", "csv"]) == 0
    compared = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert sorted((line["runs"], line["seeds"]) for line in compared) == [
        ("fedavg", "2"),
        ("fedws", "2"),
        ("fedwsq 1 bits", "2"),
        ("fedwsq 4 bits", "2"),
    ]
    assert main(["table", str(out), "--like", "paper-table-1", "--format", "csv"]) == 0
    text, notes = capsys.readouterr()
    run_here = [line for line in csv.DictReader(text.splitlines()) if line["mean"]]
    assert [(line["#bits"], line["column"], line["seeds"]) for line in run_here] == [
        ("32", "CIFAR-10 0.3", "2"),
        ("FedWS (32)", "CIFAR-10 0.3", "2"),
        ("4", "CIFAR-10 0.3", "2"),
        ("1", "CIFAR-10 0.3", "2"),
    ]
    assert "4 of 264 cells were run" in notes
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert "8 runs (8 finished)" in page.read_text()
