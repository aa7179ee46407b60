"""How work reaches workers: longest first, short orders ahead, broadcasts in mapped memory."""

import contextlib
import gc
import mmap
import os
import re
from contextlib import closing
from pathlib import Path

import pytest
import torch

from fedwsq.core.errors import RunError
from fedwsq.core.types import Key
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.simulation import SitePool, simulate
from fedwsq.plan import load_plan
from fedwsq.transports import Failure, Order, Pool, Reply, Setup
from fedwsq.transports import pool as pool_module
from fedwsq.transports.pool import Worker, gpu_for
from fedwsq.transports.shelf import Shelf
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
def simulation():
    return simulate(load_plan("quickstart", IDLE))


@pytest.fixture(scope="module")
def pool(simulation):
    pool = SitePool(simulation.plan, 1, CPU)
    yield pool
    pool.close()


class Listening:
    """A transport that nobody answers: it keeps what it was given."""

    def dispatch(self, body, orders, deadline=None):
        self.body = body
        self.orders = list(orders)
        return iter(())


def round_of_orders(simulation):
    heard = Listening()
    simulation.server(heard).step()
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


def test_orders_carry_the_size_of_the_shard(simulation):
    _, orders = round_of_orders(simulation)
    assert [order.cost for order in orders] == [10] * 60


def test_whoever_takes_longest_is_begun_first(pool, simulation):
    body, orders = round_of_orders(simulation)
    costs = zip(orders[:5], [5, 9, 1, 9, 7], strict=True)
    answers = list(pool.dispatch(body, [order._replace(cost=cost) for order, cost in costs]))
    assert all(isinstance(answer, Reply) for answer in answers)
    assert [answer.key.client for answer in answers] == [1, 3, 4, 0, 2]


def test_rounds_leave_no_descriptor_open_on_either_side(pool, simulation):
    body, orders = round_of_orders(simulation)
    counts = []
    gc.collect()  # what other tests left open is not closed in the middle of this one
    for number in range(4):
        other = bytes(bytearray(body))  # the same bytes in another place are another broadcast
        answers = list(pool.dispatch(body, [orders[0], orders[1]._replace(body=other)]))
        assert [type(answer) for answer in answers] == [Reply, Reply], number
        counts.append((open_files(), open_files(pool._workers[0].process.pid)))
    assert len(set(counts[1:])) == 1


def test_a_worker_with_several_orders_ahead_that_dies_costs_one_client(monkeypatch, tmp_path):
    """Five clients answer, the sixth never will, and others wait behind it."""
    monkeypatch.setenv("TEST_STUCK", str(tmp_path / "stuck"))
    monkeypatch.setattr(pool_module, "AHEAD_SECONDS", 1e6)  # any order is short
    simulation = simulate(load_plan("quickstart", IDLE | SIXTH_STUCK))
    pool = SitePool(simulation.plan, 1, CPU)
    body, orders = round_of_orders(simulation)
    answers = []
    ahead = 0
    try:
        for answer in pool.dispatch(body, orders):
            answers.append(answer)
            if len(answers) == 5:
                ahead = len(pool._workers[0].asked)
                who_is_stuck(tmp_path / "stuck").kill()
    finally:
        pool.close()
    assert ahead == pool_module.MOST_AHEAD
    assert sorted(answer.key.client for answer in answers) == list(range(60))
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    assert failures == [Failure(Key(0, 1, 5), "its worker process died", lost=True)]


def test_only_short_orders_with_short_frames_are_handed_out_ahead(pool):
    worker = pool._workers[0]
    key = Key(0, 1, 0)
    short = Order(key, b"O")
    long = Order(key, bytes(pool_module.LONGEST_AHEAD_BYTES + 1))
    try:
        worker.pace = 1e-3
        assert worker.has_room(long)  # it has nothing else
        worker.asked.append(short)
        assert worker.has_room(short)
        assert not worker.has_room(long)
        worker.pace = pool_module.AHEAD_SECONDS
        assert not worker.has_room(short)
        worker.pace = 1e-9
        worker.asked.extend([short] * (pool_module.MOST_AHEAD - 1))
        assert not worker.has_room(short)
    finally:
        worker.asked.clear()


@pytest.mark.parametrize("memory_file", [True, False])
def test_a_broadcast_is_written_once(monkeypatch, memory_file):
    if not memory_file:
        monkeypatch.delattr(os, "memfd_create")
    gc.collect()
    before = open_files()
    bodies = [b"one" * 1000, b"two", b""]
    with Shelf() as shelf:
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


def test_nothing_is_put_in_dev_shm(pool, simulation):
    body, orders = round_of_orders(simulation)
    for _ in pool.dispatch(body, orders[:2]):
        for pid in (os.getpid(), pool._workers[0].process.pid):
            held = held_files(pid)
            assert "/memfd:fedwsq (deleted)" in held
            assert not [path for path in held if path.startswith("/dev/shm/")]


def environment(worker: Worker) -> dict[str, str]:
    path = Path(f"/proc/{worker.process.pid}/environ")
    wait_until(path.read_bytes)  # it is empty while the process turns into another program
    lines = path.read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_workers_keep_freed_memory_unless_the_user_says_otherwise(monkeypatch, pool):
    assert environment(pool._workers[0]).items() >= pool_module.MALLOC.items()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    worker = Worker(Setup("test_pool:echo", b""), {})
    try:
        assert environment(worker)["MALLOC_TRIM_THRESHOLD_"] == "1000"
    finally:
        worker.process.kill()
        worker.stop()


def test_a_plan_with_unequal_shards_gives_the_same_weights_on_a_pool():
    uneven = IDLE["data"] | {"partition": "dirichlet_label", "clients": 6}
    simulation = simulate(load_plan("quickstart", IDLE | {"data": uneven, "clients_per_round": 6}))
    sizes = simulation.clients.split.sizes.tolist()
    assert sizes != sorted(sizes, reverse=True)
    start = first_snapshot(simulation.charter)
    found = []
    for transport in (simulation.serial(CPU), SitePool(simulation.plan, 1, CPU)):
        with closing(transport):
            server = simulation.server(transport, start)
            assert server.step().replied == 6
            found.append(server.params)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_every_worker_has_a_gpu_of_its_own(monkeypatch):
    several = torch.device("cuda")
    second = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = [gpu_for(slot, several)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert seen == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-f0")
    assert gpu_for(1, several) == {"CUDA_VISIBLE_DEVICES": "GPU-f0"}
    assert gpu_for(1, second) == gpu_for(1, CPU) == {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpu_for(0, several) == {}


# A pool knows nothing of what its workers serve


def echo(settings):
    """Answers with everything that it was given, and fails where the head asks for it."""

    def serve(body, order):
        if order.head == b"fail":
            raise ValueError("asked\nto")
        if order.head == b"die":
            os._exit(3)
        return b"|".join((settings, bytes(body), order.head, str(tuple(order.key)).encode()))

    return serve


def stillborn(settings):
    raise RuntimeError("cannot be set up")


def orders_of(*heads, number=1):
    return [Order(Key(7, number, client), head) for client, head in enumerate(heads)]


@pytest.fixture(scope="module")
def echoing():
    pool = Pool(Setup("test_pool:echo", b"set\0up"), 1, CPU)
    yield pool
    pool.close()


def test_any_bytes_go_out_and_come_back(echoing):
    heads = [b"", b"\0|\xff", bytes(100_000), b"fail"]
    for number, body in enumerate((b"body", b"", bytes(range(256)) * 1000), 1):
        orders = orders_of(*heads, number=number)
        orders[0] = orders[0]._replace(body=b"its own")
        answers = {answer.key.client: answer for answer in echoing.dispatch(body, orders)}
        assert len(answers) == 4
        for client, order in enumerate(orders[:3]):
            parts = (b"set\0up", order.body or body, order.head, str(tuple(order.key)).encode())
            assert answers[client] == Reply(order.key, b"|".join(parts))
        failure = answers[3]
        assert (failure.key, failure.lost) == (Key(7, number, 3), False)
        assert re.fullmatch(r"ValueError: asked to \(test_pool\.py:\d+, in serve\)", failure.reason)
        assert failure.traceback.endswith("\nValueError: asked\nto\n")


def test_no_orders_no_answers(echoing):
    assert list(echoing.dispatch(b"body", [])) == []


def test_a_round_left_half_way_does_not_answer_the_next(echoing):
    for _ in echoing.dispatch(b"first", orders_of(*[b"x"] * 20)):
        break
    answers = list(echoing.dispatch(b"second", orders_of(b"y", b"z", number=2)))
    assert [answer.key.round for answer in answers] == [2, 2]
    assert all(b"|second|" in answer.payload for answer in answers)


def test_a_worker_that_dies_is_replaced_and_its_client_has_failed(echoing):
    heads = [b"a", b"die", b"b"]
    answers = {answer.key.client: answer for answer in echoing.dispatch(b"", orders_of(*heads))}
    assert answers[1] == Failure(Key(7, 1, 1), "its worker process died", lost=True)
    assert isinstance(answers[0], Reply)
    assert isinstance(answers[2], Reply)


def test_three_workers_that_never_answered_are_one_error(capfd):
    with (
        closing(Pool(Setup("test_pool:stillborn", b""), 1, CPU)) as pool,
        pytest.raises(RunError, match=r"3 worker processes died in a row .*--workers 1"),
    ):
        list(pool.dispatch(b"", orders_of(*[b"x"] * 5)))
    assert "RuntimeError: cannot be set up" in capfd.readouterr().err


def test_after_workers_that_never_answered_a_pool_serves_something_else(capfd):
    """As a sweep goes on to its next cell."""
    with closing(Pool(Setup("test_pool:stillborn", b""), 2, CPU)) as pool:
        with pytest.raises(RunError, match="died in a row"):
            list(pool.dispatch(b"", orders_of(*[b"x"] * 5)))
        pool.adopt(Setup("test_pool:echo", b"other"))
        answers = list(pool.dispatch(b"body", orders_of(*[b"x"] * 5)))
    assert all(answer.payload.startswith(b"other|body|") for answer in answers)
    assert sorted(answer.key.client for answer in answers) == list(range(5))
