"""Worker processes, really started and really killed: any number of them gives the same weights."""

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from fedwsq.core.errors import RunError
from fedwsq.data import Dataset
from fedwsq.data.digits import digits
from fedwsq.runs import Run, load_snapshot, run
from fedwsq.runs.backend import Opened
from fedwsq.transports import Pool
from harness import TINY_WORDS, gone, rows, start, timeless, tiny, wait_until, who_is_stuck

STUCK = {"algorithm.name": "user_code:Stuck"}
STUCK_WORDS = [*TINY_WORDS, "algorithm.name=user_code:Stuck"]


def kill_and_see_workers_go(process: subprocess.Popen[str], workers: list[psutil.Process]) -> None:
    process.kill()
    process.wait()  # not communicate(), which would wait for the workers: they hold the same pipes
    try:
        wait_until(lambda: all(map(gone, workers)))
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        process.communicate()


def children() -> list[psutil.Process]:
    return psutil.Process().children()


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_weights_and_rows(finished, tmp_path, workers):
    summary = run(tiny(), out=tmp_path / "run", workers=workers)
    assert summary.weights == finished.summary.weights
    assert [timeless(row) for row in rows(tmp_path / "run")] == [
        timeless(row) for row in rows(finished.folder)
    ]
    assert children() == []


def test_a_run_killed_in_the_middle_of_a_round_goes_on_to_the_same_weights(finished, tmp_path):
    """In the second round, with a client that would have gone on for minutes: its worker ends as
    well, and at once.
    """
    folder = tmp_path / "run"
    words = [*STUCK_WORDS, "--out", folder, "--workers", "2"]
    process = start("run", *words, cwd=tmp_path, stuck=tmp_path / "stuck")
    stuck = who_is_stuck(tmp_path / "stuck", process)
    workers = psutil.Process(process.pid).children()
    kill_and_see_workers_go(process, workers)
    assert stuck in workers
    assert len(workers) == 2
    assert not (folder / "model.safetensors").exists()
    assert load_snapshot(folder / "checkpoints")[0].round == len(rows(folder)) == 1
    with Run.resume(folder, workers=1) as opened:
        assert opened.go().weights == finished.summary.weights
    assert [timeless(row) | {"config": ""} for row in rows(folder)] == [
        timeless(row) | {"config": ""} for row in rows(finished.folder)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patience", "reason"),
    [
        pytest.param(0, "its worker process died", id="killed"),
        pytest.param(20, r"its worker was stuck for \d+ s", id="stopped"),
    ],
)
def test_a_worker_killed_or_stopped_in_the_middle_of_a_round_changes_nothing(
    tmp_path, monkeypatch, finished, patience, reason
):
    monkeypatch.setenv("TEST_STUCK", str(tmp_path / "stuck"))
    ended = []
    # A worker that has never answered has ten minutes more, to start in.
    number = 2 if patience else 1

    def end_one() -> None:
        ended.append(who_is_stuck(tmp_path / "stuck"))
        ended[0].suspend() if patience else ended[0].kill()

    # Beside the round: whoever is stuck may be the last one that the round waits for.
    ender = threading.Thread(target=end_one)
    ender.start()
    plan = tiny(**STUCK, **{"algorithm.round": number, "patience": patience})
    with Run.create(plan, tmp_path / "run", workers=2) as opened:
        assert opened.go().weights == finished.summary.weights
    ender.join()
    others = rows(tmp_path / "run")
    disturbed = others.pop(number - 1)
    assert (disturbed["sampled"], disturbed["replied"], disturbed["failed"]) == (5, 5, 0)
    (why,) = disturbed["asked_again"].values()
    assert re.fullmatch(reason, why)
    assert [row["asked_again"] for row in others] == [{}, {}]
    assert gone(ended[0])
    assert children() == []


@pytest.mark.slow
def test_workers_that_die_one_and_all_are_replaced(tmp_path):
    """Between two rounds nobody's work is lost, however many workers there are."""

    def kill_all(record) -> None:
        if record.round == 1:
            for child in children():
                child.kill()
                child.wait()  # a zombie whose threads are still going down holds its pipe open

    with Run.create(tiny(rounds=2), tmp_path / "run", workers=4) as opened:
        opened.go([kill_all])
    assert [(row["replied"], row["failed"]) for row in rows(tmp_path / "run")] == [(5, 0), (5, 0)]


@pytest.mark.slow
def test_workers_that_never_answer_end_the_run(tmp_path, capfd):
    """Data that no worker can load: three deaths in a row, one error, nobody left behind."""
    plan = tiny(**{"data.name": "test_processes:only_at_home"})
    with pytest.raises(RunError, match=r"3 worker processes died in a row .*--workers 1"):
        run(plan, out=tmp_path / "run", workers=2)
    assert children() == []


def only_at_home() -> Dataset:
    """Data that worker processes cannot load."""
    if Path(sys.argv[0]).name == "worker.py":
        raise FileNotFoundError("not on this machine")
    return digits()


@pytest.mark.slow
def test_an_interrupted_round_leaves_no_workers_and_no_noise(tmp_path, capfd):
    """Interrupted while the server folds, not while it waits: the abandoned round must not stir
    again.
    """

    def interrupt(done: int, asked: int) -> None:
        raise KeyboardInterrupt

    with Run.create(tiny(), tmp_path / "run", workers=2) as opened:
        try:
            opened.go(progress=interrupt)
        except KeyboardInterrupt:
            pass
        else:
            pytest.fail("not interrupted")
    gc.collect()
    assert children() == []
    assert capfd.readouterr().err == ""
    assert load_snapshot(tmp_path / "run" / "checkpoints")[0].round == 0


@pytest.mark.slow
def test_an_abandoned_round_does_not_answer_the_next_one(finished, tmp_path, monkeypatch):
    """The same pool goes on after a round was given up half-way, and no late answer is taken for a
    new one.
    """
    asked = []
    with Run.create(tiny(), tmp_path / "run", workers=2) as run:
        opened = run.backend.open(tmp_path / "run" / "clients")
        assert isinstance(opened, Opened)
        monkeypatch.setattr(run.backend, "open", lambda store: opened)
        monkeypatch.setattr(opened.transport, "close", lambda: None)

        def interrupt(done: int, count: int) -> None:
            asked.append(done)
            if len(asked) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run.go(progress=interrupt)
        gc.collect()
        assert run.go().weights == finished.summary.weights
    Pool.close(opened.transport)
    assert children() == []


@pytest.mark.slow
def test_workers_whose_parent_dies_while_they_start_end_quietly(tmp_path):
    folder = tmp_path / "run"
    process = start("run", *TINY_WORDS, "--out", folder, "--workers", "2", cwd=tmp_path)
    parent = psutil.Process(process.pid)
    wait_until(lambda: len(parent.children()) == 2, process=process)
    workers = parent.children()
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: all(map(gone, workers)))
    assert process.communicate()[1] == ""
