"""The benches of training, rounds and populations do the work they claim to time."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fedwsq.bench import bare, population, processes, round, start, step
from fedwsq.core.errors import RunError
from fedwsq.core.threads import one_thread
from fedwsq.core.types import Key
from fedwsq.models.standardize import WSLayer
from fedwsq.runs import load_snapshot
from fedwsq.training import LocalTask, Shard, Training, learning_rates


def test_a_bare_loop_takes_the_steps_of_a_run():
    """From the same weights over the same batches, the loop ends where `LocalTask` does."""
    torch.manual_seed(0)
    model = bare.network("resnet8")
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    bare.steps(model, 1, "float32")()
    ended = {name: p.detach().clone() for name, p in model.named_parameters()}
    made = bare.images(bare.BATCH).train
    shard = Shard(*made.take(torch.arange(bare.BATCH)), bare.MEAN, bare.STD)
    training = Training(epochs=1, batch_size=bare.BATCH, precision="float32")
    task = LocalTask(model, shard, Key(0, 1, 0), training, learning_rates(training, 1, 10))
    for name, p in task.train(start).params.items():
        torch.testing.assert_close(p, ended[name], rtol=1e-3, atol=1e-5)
        assert not torch.equal(p, start[name])


def test_pictures_are_augmented_and_normalized_as_cifar_is():
    data = bare.images(20)
    assert (data.shape, data.train.take(torch.arange(2))[0].dtype) == ((3, 32, 32), torch.uint8)
    assert data.augment
    assert len(data.mean) == len(data.std) == 3


def test_augmentation_is_a_share_of_a_step(monkeypatch, clock):
    steps = step.steps
    monkeypatch.setattr(step, "steps", lambda *given: clock.takes(steps(*given), lambda: 50.0))
    monkeypatch.setattr(step, "augment", clock.takes(step.augment, lambda *given: 1.0))
    with one_thread():
        found = step.augmentation("float32", repeats=2)
    assert (found.low, found.value, found.high, found.unit) == (2, 2, 2, "%")
    assert (found.reached, found.note) == (True, "1000.00 ms of 50000 ms")


@pytest.mark.slow
def test_standardization_is_measured_in_processes_of_its_own(monkeypatch, clock):
    def seconds(loop: subprocess.Popen) -> float:
        return 3.0 if "'resnet8', 1, 'float32', True" in loop.args[-1] else 2.0

    monkeypatch.setattr(step, "side_by_side", clock.takes(step.side_by_side, seconds))
    found = step.standardization("float32", "resnet8", repeats=2)
    assert (found.name, found.value, found.reached) == ("resnet8 step, WS / without", 1.5, False)
    assert found.note == "float32, 2000 ms a step without"


def test_a_bare_loop_is_with_standardization_or_without():
    for ws in (True, False):
        layers = bare.network("resnet8", ws).modules()
        assert any(isinstance(layer, WSLayer) for layer in layers) == ws


def test_the_plan_of_a_measured_run_is_the_papers_local_work():
    plan = step.training_plan("resnet18", 5, "float32")
    assert plan.training.steps(step.SHARD) == 50
    assert plan.training.batch_size_for(step.SHARD) == bare.BATCH
    assert plan.clients_per_round == plan.data.clients == 2


def test_the_small_model_is_25_kilobytes():
    assert 4 * sum(p.numel() for p in round.small().parameters()) == pytest.approx(25e3, rel=0.03)


def test_idle_rounds_are_timed_from_row_to_row(monkeypatch):
    """The first ones warm up and the last evaluates: they do not count."""
    rows = iter([0.0, 9.0, 18.0, 27.0, 27.08, 27.15, 27.24, 40.0])
    monkeypatch.setattr(round, "time", SimpleNamespace(perf_counter=lambda: next(rows)))
    monkeypatch.setattr(round, "ROUNDS", 8)
    found = round.idle_rounds(1, 1)
    assert (found.low, found.value, found.high) == pytest.approx((70, 80, 90))
    assert (found.unit, found.reached) == ("ms", True)
    assert "one process, a checkpoint a round" in found.name
    assert list(rows) == []


def test_a_round_late_in_a_run_remembers_everybody(tmp_path):
    work = population.one_round(tmp_path, population.Point(300, 5))
    work()
    accepted = load_snapshot(tmp_path / "300-5")[0].accepted
    assert len(accepted) == 300
    assert sorted(accepted.tolist()) == [1] * 295 + [2] * 5


@pytest.mark.skipif(not processes.can_watch(), reason="needs /proc/PID/smaps_rollup")
def test_memory_is_that_of_the_whole_tree():
    """A child with a hundred megabytes of its own, below a shell: both are seen."""
    child = "import sys; x = bytearray(b'x' * 10**8); print('ready', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        (grandchild,) = processes.descendants(process.pid)
        assert 100 < processes.pss_megabytes(grandchild) < 200
        assert processes.pss_megabytes(process.pid) < 50
    finally:
        process.communicate()
    assert processes.pss_megabytes(grandchild) == 0.0
    assert processes.descendants(process.pid) == []


@pytest.mark.slow
@pytest.mark.skipif(not processes.can_watch(), reason="needs /proc/PID/smaps_rollup")
def test_a_run_is_watched_to_its_end():
    seen = processes.watch(["rounds=2", "training.epochs=1", "--workers", "1"])
    assert [record.round for record in seen.records] == [1, 2]
    assert 100 < seen.peak_megabytes < 2000
    assert seen.first_row_seconds > seen.records[0].seconds


@pytest.mark.skipif(not processes.can_watch(), reason="needs /proc/PID/smaps_rollup")
def test_a_run_that_fails_says_why():
    with pytest.raises(RunError, match=r"ended with 2: .*rounds is 0"):
        processes.watch(["rounds=0"])


def test_elsewhere_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "PROC", tmp_path)
    with pytest.raises(RunError, match="smaps_rollup, which this system does not have"):
        processes.watch(["rounds=1"])


def test_how_long_an_answer_takes(monkeypatch, clock):
    taken = {"--help": 0.1}
    answer = clock.takes(lambda command: None, lambda command: taken.get(command, 0.5))
    monkeypatch.setattr(start, "answer", answer)
    found = {figure.name: figure for figure in start.measure()}
    assert found["fedwsq --help"].value == pytest.approx(0.1)
    assert (found["fedwsq --help"].reached, found["fedwsq rnu"].reached) == (True, False)
