"""How work reaches the workers: longest first, short tasks ahead, broadcasts through memory that all of them map."""

import contextlib
import gc
import mmap
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedwsq.federation.server import Federation, first_snapshot
from fedwsq.federation.site import Failure, Reply
from fedwsq.federation.workload import build_workload
from fedwsq.plan.build import dump_plan, load_plan
from fedwsq.transports import pool as inprocess
from fedwsq.transports.pool import Pool, Task, _Shelf, _Worker
from harness import wait_until, who_is_stuck

CPU = torch.device("cpu")
IDLE = {
    "eval_every": 100,
    "clients_per_round": 60,
    "data": {
        "name": "synthetic",
        "samples": 600,
        "test_samples": 100,
        "clients": 60,
        "partition": "iid",
    },
    "model.name": "fedwsq.bench.round:small",
    "algorithm": "fedwsq.bench.round:Idle",
}
SIXTH_STUCK = {
    "algorithm": {"name": "user_code:Stuck", "round": 1, "client": 5},
    "training.epochs": 1,
    "training.batches_per_epoch": 1,
}


@pytest.fixture(scope="module")
def workload():
    return build_workload(load_plan("quickstart", IDLE))


@pytest.fixture(scope="module")
def pool(workload):
    pool = Pool(dump_plan(workload.plan), 1, CPU)
    yield pool
    pool.close()


class Listening:
    """A backend that nobody answers: it keeps what it was given."""

    def dispatch(self, body, orders):
        self.body, self.orders = body, list(orders)
        return iter(())


def round_of_orders(workload):
    heard = Listening()
    Federation(workload, heard).step()
    return heard.body, heard.orders


def open_files(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def held_files(pid: int | str) -> set[str]:
    """What a process has open or mapped; files without a name and devices have made-up ones."""
    found = {
        line.split(maxsplit=5)[5]
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/" in line
    }
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since, as the one that lists them is
            found.add(os.readlink(descriptor))
    return found


def test_orders_carry_the_size_of_the_shard(workload):
    _, orders = round_of_orders(workload)
    assert [order.cost for order in orders] == [10] * 60


def test_whoever_takes_longest_is_begun_first(pool, workload):
    body, orders = round_of_orders(workload)
    costs = [5, 9, 1, 9, 7]
    answers = list(
        pool.dispatch(
            body, [order._replace(cost=cost) for order, cost in zip(orders[:5], costs, strict=True)]
        )
    )
    assert all(isinstance(answer, Reply) for answer in answers)
    assert [answer.key.client for answer in answers] == [1, 3, 4, 0, 2]


def test_rounds_leave_no_descriptor_open_on_either_side(pool, workload):
    body, orders = round_of_orders(workload)
    counts = []
    gc.collect()  # what other tests left open is not closed in the middle of this one
    for number in range(4):
        other = bytes(bytearray(body))  # the same bytes in another place are another broadcast
        answers = list(pool.dispatch(body, [orders[0], orders[1]._replace(body=other)]))
        assert [type(answer) for answer in answers] == [Reply, Reply], number
        counts.append((open_files(), open_files(pool._workers[0].process.pid)))
    assert len(set(counts[1:])) == 1


def test_a_worker_with_several_tasks_ahead_that_dies_costs_one_client(monkeypatch, tmp_path):
    """Five clients answer, the sixth never will, and others wait behind it."""
    monkeypatch.setenv("TEST_STUCK", str(tmp_path / "stuck"))
    monkeypatch.setattr(inprocess, "AHEAD_SECONDS", 1e6)  # any task is short
    workload = build_workload(load_plan("quickstart", IDLE | SIXTH_STUCK))
    pool = Pool(dump_plan(workload.plan), 1, CPU)
    body, orders = round_of_orders(workload)
    answers, ahead = [], 0
    try:
        for answer in pool.dispatch(body, orders):
            answers.append(answer)
            if len(answers) == 5:
                ahead = len(pool._workers[0].asked)
                who_is_stuck(tmp_path / "stuck").kill()
    finally:
        pool.close()
    assert ahead == inprocess.MOST_AHEAD
    assert sorted(answer.key.client for answer in answers) == list(range(60))
    failures = [
        (answer.key.client, answer.reason) for answer in answers if isinstance(answer, Failure)
    ]
    assert failures == [(5, "its worker process died")]


def test_only_short_tasks_with_short_frames_are_handed_out_ahead(pool):
    worker = pool._workers[0]
    short, long = Task(b"", b"O"), Task(b"", bytes(inprocess.LONGEST_AHEAD_BYTES + 1))
    try:
        worker._pace = 1e-3
        assert worker.has_room(long)  # it has nothing else
        worker.asked.append((0, short))
        assert worker.has_room(short)
        assert not worker.has_room(long)
        worker._pace = inprocess.AHEAD_SECONDS
        assert not worker.has_room(short)
        worker._pace = 1e-9
        worker.asked.extend([(0, short)] * (inprocess.MOST_AHEAD - 1))
        assert not worker.has_room(short)
    finally:
        worker.asked.clear()


@pytest.mark.parametrize("memory_file", [True, False])
def test_a_broadcast_is_written_once(monkeypatch, memory_file):
    if not memory_file:
        monkeypatch.delattr(os, "memfd_create")
    gc.collect()
    before, bodies = open_files(), [b"one" * 1000, b"two", b""]
    with _Shelf() as shelf:
        placed = [shelf.put(body) for body in bodies]
        assert [shelf.put(body) for body in bodies] == placed
        assert open_files() == before + 3
        assert len({each.number for each in placed}) == 3
        for body, each in zip(bodies, placed, strict=True):
            assert os.pread(each.descriptor, 10**4, 0) == body
            assert each.length == len(body)
        with mmap.mmap(placed[0].descriptor, placed[0].length, prot=mmap.PROT_READ) as view:
            assert view[:] == bodies[0]
    assert open_files() == before


def test_nothing_is_put_in_dev_shm(pool, workload):
    body, orders = round_of_orders(workload)
    for _ in pool.dispatch(body, orders[:2]):
        for pid in (os.getpid(), pool._workers[0].process.pid):
            held = held_files(pid)
            assert "/memfd:fedwsq (deleted)" in held
            assert not [path for path in held if path.startswith("/dev/shm/")]


def test_workers_keep_freed_memory_unless_the_user_says_otherwise(monkeypatch, pool):
    def environment(worker: _Worker) -> dict[str, str]:
        path = Path(f"/proc/{worker.process.pid}/environ")
        wait_until(path.read_bytes)  # it is empty while the process turns into another program
        return dict(
            line.split("=", 1) for line in path.read_bytes().decode().split("\0") if "=" in line
        )

    assert environment(pool._workers[0]).items() >= inprocess.MALLOC.items()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    worker = _Worker(b"{}")
    try:
        assert environment(worker)["MALLOC_TRIM_THRESHOLD_"] == "1000"
    finally:
        worker.process.kill()
        worker.stop()


def test_a_plan_with_unequal_shards_gives_the_same_weights_on_a_pool(workload):
    plan = load_plan("quickstart", {**IDLE, "data": {**IDLE["data"], "partition": "dirichlet_label", "clients": 6},
                                    "clients_per_round": 6})  # fmt: skip
    workload = build_workload(plan)
    sizes = workload.split.sizes.tolist()
    assert sizes != sorted(sizes, reverse=True)
    start = first_snapshot(workload)
    found = []
    for backend in (inprocess.Serial(inprocess.Site(workload, CPU)), Pool(dump_plan(plan), 1, CPU)):
        federation = Federation(workload, backend, replace(start))
        record = federation.step()
        backend.close()
        assert record.replied == 6
        found.append(federation.params)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
