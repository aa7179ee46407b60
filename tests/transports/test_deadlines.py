"""Nobody is waited for for ever: workers really stopped, deadlines really over."""

import os
import signal
import struct
import sys
import time
from contextlib import closing

import psutil
import pytest
import torch

from fedwsq.core.types import Key
from fedwsq.transports import Failure, Order, Pool, Reply, Serial, Setup, deadline_in, seconds_left
from fedwsq.transports import pool as pool_module
from fedwsq.transports.deadlines import AT_WORK, NOT_BEGUN, too_late
from fedwsq.transports.patience import LEAST_SECONDS, UNTRIED_SECONDS, Patience
from harness import gone

CPU = torch.device("cpu")
PATIENCE_SECONDS = 3.0  # for work that takes none


def stop() -> None:
    """As `kill -STOP` from outside: this process gets no more time."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stopping(settings):
    """A worker that stops where the head says so."""

    def serve(body, order):
        if order.head == b"stop":
            stop()
        if order.head == b"stop in a frame":
            # A frame is its length, then its bytes; here most of them are missing.
            os.write(int(sys.argv[1]), struct.pack("!i", 1000) + bytes(10))
            stop()
        return order.head[:20]

    return serve


def stillborn(settings):
    stop()


def orders_of(*heads):
    return [Order(Key(7, 1, client), head) for client, head in enumerate(heads)]


@pytest.fixture(scope="module")
def one_worker():
    with closing(Pool(Setup("test_deadlines:stopping", b""), 1, CPU, PATIENCE_SECONDS)) as pool:
        yield pool


@pytest.fixture
def pool(one_worker):
    """One worker, which has answered before: what it takes to start is over."""
    assert list(one_worker.dispatch(b"", orders_of(b"warm"))) == [Reply(Key(7, 1, 0), b"warm")]
    return one_worker


def worker_of(pool):
    return psutil.Process(pool._workers[0].process.pid)


def by_client(answers):
    return {answer.key.client: answer for answer in answers}


@pytest.mark.slow
def test_a_stopped_worker_is_ended_and_only_its_order_is_lost(pool):
    stopped = worker_of(pool)
    answers = by_client(pool.dispatch(b"", orders_of(b"one", b"stop", b"two", b"three")))
    assert len(answers) == 4
    lost = answers.pop(1)
    assert isinstance(lost, Failure)
    assert (lost.lost, lost.late) == (True, False)
    assert lost.reason == f"its worker was stuck for {PATIENCE_SECONDS:.0f} s"
    assert [answer.payload for answer in answers.values()] == [b"one", b"two", b"three"]
    assert gone(stopped)


@pytest.mark.slow
def test_a_worker_that_stops_in_the_middle_of_a_frame_is_lost(monkeypatch):
    monkeypatch.setattr(pool_module, "STALL_SECONDS", 1)
    with closing(Pool(Setup("test_deadlines:stopping", b""), 1, CPU)) as pool:
        answers = by_client(pool.dispatch(b"", orders_of(b"stop in a frame", b"one")))
    assert answers[0] == Failure(Key(7, 1, 0), "its worker process died", lost=True)
    assert answers[1] == Reply(Key(7, 1, 1), b"one")


@pytest.mark.slow
def test_an_order_too_long_for_the_pipe_of_a_stopped_worker_goes_to_another(monkeypatch):
    monkeypatch.setattr(pool_module, "STALL_SECONDS", 1)
    with closing(Pool(Setup("test_deadlines:stopping", b""), 1, CPU)) as pool:
        list(pool.dispatch(b"", orders_of(b"warm")))
        stopped = worker_of(pool)
        stopped.suspend()
        (answer,) = pool.dispatch(b"", orders_of(bytes(10**7)))
        assert answer == Reply(Key(7, 1, 0), bytes(20))
        assert gone(stopped)


def test_a_worker_that_stops_while_it_starts_is_ended(monkeypatch):
    monkeypatch.setattr(pool_module, "START_SECONDS", 0.0)
    with closing(Pool(Setup("test_deadlines:stillborn", b""), 1, CPU, 0.5)) as pool:
        stopped = worker_of(pool)
        answer = next(pool.dispatch(b"", orders_of(b"one")))
        assert isinstance(answer, Failure)
        assert answer.lost
        assert gone(stopped)


def test_at_the_deadline_a_pool_ends_who_is_at_work_and_begins_nobody(pool):
    stopped = worker_of(pool)
    deadline = deadline_in(1.0)
    answers = by_client(pool.dispatch(b"", orders_of(b"one", b"stop", b"two"), deadline))
    assert seconds_left(deadline) == 0
    assert answers.pop(0) == Reply(Key(7, 1, 0), b"one")
    assert all(answer.late and not answer.lost for answer in answers.values())
    assert answers[1].reason == f"{AT_WORK}; raise deadline to wait longer"
    assert gone(stopped)
    # What was due then does not answer the next.
    assert list(pool.dispatch(b"", orders_of(b"next"))) == [Reply(Key(7, 1, 0), b"next")]


def test_an_answer_that_is_there_by_the_deadline_comes_out(pool, monkeypatch):
    """However long whoever asked is busy with the one before."""
    monkeypatch.setattr(pool_module, "AHEAD_SECONDS", 1e6)  # the worker has both at once
    deadline = deadline_in(2.0)
    answers = []
    for answer in pool.dispatch(b"", orders_of(b"one", b"two"), deadline):
        answers.append(answer)
        time.sleep(seconds_left(deadline))
    assert answers == [Reply(Key(7, 1, 0), b"one"), Reply(Key(7, 1, 1), b"two")]


def test_after_the_deadline_nobody_is_asked(pool):
    worker = worker_of(pool)
    answers = list(pool.dispatch(b"", orders_of(b"stop", b"stop"), time.monotonic()))
    assert answers == [too_late(Key(7, 1, c), NOT_BEGUN) for c in (0, 1)]
    assert worker_of(pool) == worker


def test_serial_waits_for_who_is_at_work_and_begins_nobody_after():
    deadline = deadline_in(1.0)
    begun = []

    def serve(body, order):
        begun.append(order.key.client)
        if order.key.client == 1:
            time.sleep(seconds_left(deadline) + 0.01)
        return order.head

    answers = list(Serial(serve).dispatch(b"", orders_of(b"one", b"two", b"three"), deadline))
    assert answers[0] == Reply(Key(7, 1, 0), b"one")
    assert answers[1] == too_late(Key(7, 1, 1), "it answered after the deadline")
    assert answers[1].reason == "it answered after the deadline; raise deadline to wait longer"
    assert answers[2] == too_late(Key(7, 1, 2), NOT_BEGUN)
    assert begun == [0, 1]


def test_patience_follows_from_what_was_measured():
    small = Order(Key(7, 1, 0), b"", cost=10)
    patience = Patience()
    assert patience.seconds(small) == UNTRIED_SECONDS
    patience.learn(small, 2.0)
    assert patience.seconds(small) == LEAST_SECONDS
    patience.learn(small, 100.0)
    patience.learn(small, 1.0)
    assert patience.seconds(small) == 20 * 100
    assert patience.seconds(small._replace(cost=30)) == 3 * 20 * 100
    assert patience.seconds(small._replace(cost=0)) == 20 * 100
    assert Patience(5.0).seconds(small) == 5.0
