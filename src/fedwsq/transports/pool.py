"""Worker processes on this machine.

A worker is a fresh interpreter with one thread that holds model and data once. Frames on its pipe
are plain bytes. A broadcast is written once, to a file without a name that all workers map. Nothing
is pickled, nothing lives in /dev/shm, and the caller's main module is not imported again.
"""

import contextlib
import math
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from typing import NamedTuple

import torch

from fedwsq.core.errors import RunError
from fedwsq.transports.base import Answer, Failure, Order, Reply, of_this_machine
from fedwsq.transports.deadlines import AT_WORK, NOT_BEGUN, is_over, seconds_left, too_late
from fedwsq.transports.frames import HELD_BROADCASTS, KEY, Tag
from fedwsq.transports.patience import Patience
from fedwsq.transports.shelf import Placed, Shelf

# Short tasks are handed out ahead, so that a worker need not wait while its parent is busy.
AHEAD_SECONDS = 0.02
MOST_AHEAD = 8
LONGEST_AHEAD_BYTES = 8192  # with more in the pipe, both ends might wait for the other to read
STALL_SECONDS = 60  # without a byte, in the middle of a frame: nobody stops there to think
START_SECONDS = 600.0  # more, for a worker that is new: it imports PyTorch and loads the data first
LONGEST_POLL_SECONDS = 3600.0  # the system counts milliseconds, and not without end
LAST_WAIT_SECONDS = 5.0  # for a process that was killed; one that waits for a dead disk stays
# A step of training takes and returns hundreds of megabytes. Handed back to the system each time,
# they come back as fresh pages, each at the price of a fault: ten thousand a step of ResNet-18.
# (glibc; elsewhere nobody reads these.)
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**29)}


class Setup(NamedTuple):
    """What a worker is: `module:function`, called with `settings`, returns what serves orders."""

    factory: str
    settings: bytes


class Work(NamedTuple):
    """What one call of `dispatch` is about."""

    body: bytes
    waiting: deque[Order]
    shelf: Shelf
    deadline: float | None


class Pool:
    """Worker processes, each with one order at a time, or a few short ones.

    One that dies, or takes longer for an order than `patience` has seconds, is replaced, and the
    order that it was working on is lost; so is one that is still at work when a deadline is over.
    """

    MAX_DEATHS = 3  # in a row, of workers that never answered: then something is wrong with all

    def __init__(
        self, setup: Setup, workers: int, device: torch.device, patience: float = 0.0
    ) -> None:
        self._setup = setup
        self._device = device
        self._patience = Patience(patience)
        self._deaths = 0
        self._workers = [self._start(slot) for slot in range(workers)]

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        """Hand the orders out as workers come free, the longest first: none is left alone at the
        end.
        """
        waiting = deque(sorted(orders, key=lambda order: -order.cost))
        with Shelf() as shelf:
            work = Work(body, waiting, shelf, deadline)
            try:
                for slot in range(len(self._workers)):
                    self._hand_out(slot, work)
                over = False
                while self._busy() and not over:
                    over = is_over(deadline)
                    yield from self._next_answers(work)  # those that are there by now, at least
                yield from self._too_late(work)
            finally:
                self._abandon()

    def adopt(self, setup: Setup, patience: float = 0.0) -> None:
        """Serve something else from the next round on; no order may be under way."""
        self._setup = setup
        self._patience = Patience(patience)  # what was measured is of other work
        deadly = self._deaths > 0
        self._deaths = 0
        for slot, worker in enumerate(self._workers):
            # Whoever never answered may yet die of what it was set up with before.
            dying = deadly and not worker.answered
            if dying or not worker.adopt(setup):
                worker.stop()
                self._workers[slot] = self._start(slot)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def _start(self, slot: int) -> "Worker":
        return Worker(self._setup, gpu_for(slot, self._device))

    def _busy(self) -> "dict[int, Worker]":
        """The workers from which an answer is due."""
        return {slot: worker for slot, worker in enumerate(self._workers) if worker.asked}

    def _next_answers(self, work: Work) -> Iterator[Answer]:
        """Wait until something happens, at the latest until the deadline or somebody is stuck."""
        busy = self._busy()
        soonest = min(self._due(slot) for slot in busy)
        ready = _ready(busy, min(seconds_left(soonest), seconds_left(work.deadline)))
        stuck = [slot for slot in busy if slot not in ready and is_over(self._due(slot))]
        for slot in ready:
            answer = self._collect(slot, work)
            self._hand_out(slot, work)
            yield answer
        for slot in stuck:
            seconds = time.monotonic() - self._workers[slot].since
            failure = self._lose(slot, work, f"its worker was stuck for {seconds:.0f} s")
            self._hand_out(slot, work)
            yield failure

    def _collect(self, slot: int, work: Work) -> Answer:
        """One answer of a worker that has one, or has died."""
        worker = self._workers[slot]
        order = worker.asked[0]
        answer = worker.answer(order)
        if answer is None:
            return self._lose(slot, work, "its worker process died")
        worker.asked.popleft()
        self._deaths = 0
        self._patience.learn(order, worker.pace)
        return of_this_machine(answer)

    def _lose(self, slot: int, work: Work, reason: str) -> Failure:
        """Replace a worker, and with it lose the order that it was working on."""
        asked = self._workers[slot].asked
        order = asked.popleft()
        work.waiting.extendleft(reversed(asked))  # those it had not begun
        asked.clear()
        self._replace(slot)
        return Failure(order.key, reason, lost=True)

    def _due(self, slot: int) -> float:
        """When a worker that is still busy counts as stuck."""
        worker = self._workers[slot]
        due = worker.since + self._patience.seconds(worker.asked[0])
        return due if worker.answered else due + START_SECONDS

    def _too_late(self, work: Work) -> Iterator[Failure]:
        """Whoever is not done, once the deadline is over; their workers are ended (`_abandon`)."""
        for worker in self._busy().values():
            for order in worker.asked:
                yield too_late(order.key, AT_WORK)
        for order in work.waiting:
            yield too_late(order.key, NOT_BEGUN)

    def _hand_out(self, slot: int, work: Work) -> None:
        """Give a worker its next order, or several short ones."""
        waiting = work.waiting
        while waiting and self._workers[slot].has_room(waiting[0]) and not is_over(work.deadline):
            order = waiting[0]
            if self._workers[slot].ask(order, work.shelf.put(order.body or work.body)):
                waiting.popleft()
            elif self._workers[slot].asked:
                return  # it died at work: its answer will say so
            else:
                self._replace(slot)

    def _replace(self, slot: int) -> None:
        why = self._workers[slot].stop()
        self._deaths += not self._workers[slot].answered
        if self._deaths >= self.MAX_DEATHS:
            raise RunError(
                f"{self._deaths} worker processes died in a row ({why}); try fewer with --workers 1"
            )
        self._workers[slot] = self._start(slot)

    def _abandon(self) -> None:
        """Left half-way: answers that are still due must not reach the next round."""
        for slot, worker in enumerate(self._workers):  # none if closed before this round was over
            if worker.asked:
                worker.stop()
                self._workers[slot] = self._start(slot)


def _ready(busy: "Mapping[int, Worker]", seconds: float) -> list[int]:
    """Wait for workers that have answered, or died; none if nobody did in the time given."""
    # What `multiprocessing.connection.wait` does, at a tenth of its price.
    poll = select.poll()
    for worker in busy.values():
        poll.register(worker.pipe, select.POLLIN)
    most = min(seconds, LONGEST_POLL_SECONDS)
    ready = {descriptor for descriptor, _ in poll.poll(math.ceil(1000 * most))}
    return [slot for slot, worker in busy.items() if worker.pipe.fileno() in ready]


class Worker:
    """One worker process and the pipe to it."""

    def __init__(self, setup: Setup, environment: Mapping[str, str]) -> None:
        self.pipe, theirs = Pipe()
        paths = [path or os.getcwd() for path in sys.path]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        path = {"PYTHONPATH": os.pathsep.join(paths)}
        ends = [str(theirs.fileno()), str(os.getpid())]
        self.process = subprocess.Popen(
            # -P: our own sys.path, without the working directory in front of it.
            [sys.executable, "-P", "-m", "fedwsq.transports.worker", *ends],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**MALLOC, **os.environ, **threads, **environment, **path},
            process_group=0,  # Ctrl-C is for the parent alone
        )
        theirs.close()
        _limit(self.pipe.fileno(), socket.SO_RCVTIMEO, STALL_SECONDS)
        self.asked: deque[Order] = deque()  # what it has not answered yet
        self.pace = math.inf  # seconds of the last order
        self.since = 0.0  # when the next one began
        self._held = deque[int](maxlen=HELD_BROADCASTS)
        self.adopt(setup)

    def adopt(self, setup: Setup) -> bool:
        """Have it serve this; False when it is gone."""
        self.answered = False
        self.pace = math.inf
        try:
            # It does not read before it is set up.
            _limit(self.pipe.fileno(), socket.SO_SNDTIMEO, START_SECONDS)
            for frame in (Tag.SETUP, setup.factory.encode(), setup.settings):
                self.pipe.send_bytes(frame)
        except OSError:
            return False
        return True

    def has_room(self, order: Order) -> bool:
        """Whether it can take this one on top of those it has."""
        if not self.asked:
            return True
        short = len(self.asked) < min(MOST_AHEAD, AHEAD_SECONDS / self.pace)
        return short and len(order.head) <= LONGEST_AHEAD_BYTES

    def ask(self, order: Order, body: Placed) -> bool:
        """Hand over an order, and its broadcast if new to this worker; False when it is gone."""
        if not self.asked:
            self.since = time.monotonic()
        try:
            if body.number not in self._held:
                self.pipe.send_bytes(b"%b%d" % (Tag.BROADCAST, body.length))
                send_handle(self.pipe, body.descriptor, self.process.pid)
                self._held.append(body.number)
            which = bytes([self._held.index(body.number)])
            self.pipe.send_bytes(Tag.ORDER + which + KEY.pack(*order.key) + order.head)
        except OSError:
            self.process.kill()  # it may have half a frame, and no use for the next
            return False
        self.asked.append(order)
        return True

    def answer(self, order: Order) -> Answer | None:
        """What it sent for this order; None when it is gone."""
        try:
            tag = self.pipe.recv_bytes()
            payload = self.pipe.recv_bytes()
            details = self.pipe.recv_bytes() if tag == Tag.FAILURE else b""
        except (EOFError, OSError):
            return None
        if not self.answered:
            _limit(self.pipe.fileno(), socket.SO_SNDTIMEO, STALL_SECONDS)
            self.answered = True
        now = time.monotonic()
        self.pace = now - self.since
        self.since = now
        if tag == Tag.DISK:
            return Failure(order.key, "disk", errno=int(payload))
        if tag == Tag.FAILURE:
            return Failure(order.key, payload.decode(), traceback=details.decode())
        return Reply(order.key, payload)

    def stop(self) -> str:
        """End the process, wait for it, and say how it ended."""
        self.pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LAST_WAIT_SECONDS)
        return f"exit status {self.process.returncode}"


def _limit(descriptor: int, option: int, seconds: float) -> None:
    """Have reading or writing fail when the other end stops in the middle of a frame."""
    with socket.socket(fileno=os.dup(descriptor)) as shared:
        shared.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), 0))


def gpu_for(slot: int, device: torch.device) -> dict[str, str]:
    """What makes a worker see one GPU of several, each the next; "cuda:1" and the like stay."""
    count = torch.cuda.device_count() if device == torch.device("cuda") else 0
    if count < 2:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[slot % count]}
