"""Worker processes on this machine.

A worker is a fresh interpreter with one thread that holds model and data once. Frames on its pipe
are plain bytes. A broadcast is written once, to a file without a name that all workers map. Nothing
is pickled, nothing lives in /dev/shm, and the caller's main module is not imported again.
"""

import contextlib
import math
import os
import select
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
from fedwsq.transports.base import Answer, Failure, Order, Reply
from fedwsq.transports.frames import HELD_BROADCASTS, KEY, Tag
from fedwsq.transports.shelf import Placed, Shelf

# Short tasks are handed out ahead, so that a worker need not wait while its parent is busy.
AHEAD_SECONDS = 0.02
MOST_AHEAD = 8
LONGEST_AHEAD_BYTES = 8192  # with more in the pipe, both ends might wait for the other to read
# A step of training takes and returns hundreds of megabytes. Handed back to the system each time,
# they come back as fresh pages, each at the price of a fault: ten thousand a step of ResNet-18.
# (glibc; elsewhere nobody reads these.)
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**29)}


class Setup(NamedTuple):
    """What a worker is: `module:function`, called with `settings`, returns what serves orders."""

    factory: str
    settings: bytes


class Pool:
    """Worker processes, each with one order at a time, or a few short ones.

    One that dies is replaced, and the client it was working for has failed.
    """

    MAX_DEATHS = 3  # in a row, of workers that never answered: then something is wrong with all

    def __init__(self, setup: Setup, workers: int, device: torch.device) -> None:
        self._setup = setup
        self._device = device
        self._deaths = 0
        self._workers = [self._start(slot) for slot in range(workers)]

    def dispatch(self, body: bytes, orders: Sequence[Order]) -> Iterator[Answer]:
        """Hand the orders out as workers come free, the longest first: none is left alone at the
        end.
        """
        waiting = deque(sorted(orders, key=lambda order: -order.cost))
        with Shelf() as shelf:
            try:
                for slot in range(len(self._workers)):
                    self._hand_out(slot, body, waiting, shelf)
                while busy := self._busy():
                    for slot in _ready(busy):
                        answer = self._collect(slot, waiting)
                        self._hand_out(slot, body, waiting, shelf)
                        yield answer
            finally:
                self._abandon()

    def adopt(self, setup: Setup) -> None:
        """Serve something else from the next round on; no order may be under way."""
        self._setup = setup
        self._deaths = 0
        for slot, worker in enumerate(self._workers):
            if not worker.adopt(setup):
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

    def _collect(self, slot: int, waiting: deque[Order]) -> Answer:
        """One answer of a worker that has one, or has died."""
        worker = self._workers[slot]
        order = worker.asked.popleft()
        answer = worker.answer(order)
        if answer is None:
            waiting.extendleft(reversed(worker.asked))  # those it had not begun
            self._replace(slot)
            return Failure(order.key, "its worker process died", lost=True)
        worker.answered = True
        self._deaths = 0
        return answer

    def _hand_out(self, slot: int, body: bytes, waiting: deque[Order], shelf: Shelf) -> None:
        """Give a worker its next order, or several short ones."""
        while waiting and self._workers[slot].has_room(waiting[0]):
            order = waiting[0]
            if self._workers[slot].ask(order, shelf.put(order.body or body)):
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


def _ready(busy: "Mapping[int, Worker]") -> list[int]:
    """Wait for workers that have answered, or died."""
    # What `multiprocessing.connection.wait` does, at a tenth of its price.
    poll = select.poll()
    for worker in busy.values():
        poll.register(worker.pipe, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
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
        self.answered = False
        self.asked: deque[Order] = deque()  # what it has not answered yet
        self._pace = math.inf  # seconds of the last order
        self._since = 0.0  # when the next one began
        self._held = deque[int](maxlen=HELD_BROADCASTS)
        self.adopt(setup)

    def adopt(self, setup: Setup) -> bool:
        """Have it serve this; False when it is gone."""
        self.answered = False
        self._pace = math.inf
        try:
            for frame in (Tag.SETUP, setup.factory.encode(), setup.settings):
                self.pipe.send_bytes(frame)
        except OSError:
            return False
        return True

    def has_room(self, order: Order) -> bool:
        """Whether it can take this one on top of those it has."""
        if not self.asked:
            return True
        short = len(self.asked) < min(MOST_AHEAD, AHEAD_SECONDS / self._pace)
        return short and len(order.head) <= LONGEST_AHEAD_BYTES

    def ask(self, order: Order, body: Placed) -> bool:
        """Hand over an order, and its broadcast if new to this worker; False when it is gone."""
        if not self.asked:
            self._since = time.perf_counter()
        try:
            if body.number not in self._held:
                self.pipe.send_bytes(b"%b%d" % (Tag.BROADCAST, body.length))
                send_handle(self.pipe, body.descriptor, self.process.pid)
                self._held.append(body.number)
            which = bytes([self._held.index(body.number)])
            self.pipe.send_bytes(Tag.ORDER + which + KEY.pack(*order.key) + order.head)
        except OSError:
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
        now = time.perf_counter()
        self._pace = now - self._since
        self._since = now
        if tag == Tag.FAILURE:
            return Failure(order.key, payload.decode(), traceback=details.decode())
        return Reply(order.key, payload)

    def stop(self) -> str:
        """End the process, wait for it, and say how it ended."""
        self.pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)
        self.process.kill()
        return f"exit status {self.process.wait()}"


def gpu_for(slot: int, device: torch.device) -> dict[str, str]:
    """What makes a worker see one GPU of several, each the next; "cuda:1" and the like stay."""
    count = torch.cuda.device_count() if device == torch.device("cuda") else 0
    if count < 2:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[slot % count]}
