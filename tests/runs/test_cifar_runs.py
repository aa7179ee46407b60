"""The same promises on real images: three rounds of CIFAR-10 with ResNet-8. Needs FEDWSQ_DATA."""

import os
import time

import psutil
import pytest

from fedwsq.core.errors import DataError
from fedwsq.data import DATASETS
from fedwsq.runs import Run, Summary, load_snapshot, run
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
