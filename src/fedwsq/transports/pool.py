"""Backends on one machine: serial in this process, or a pool of worker processes.

A worker is a fresh interpreter with one thread that holds model and data once. Frames on its pipe are plain bytes: a
tag, then our own message or JSON. A broadcast is written once, to a file without a name that all workers map. Nothing
is pickled, nothing lives in /dev/shm, and the caller's main module is not imported again.
"""

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import torch

from fedwsq.core.errors import RunError
from fedwsq.core.threads import one_thread
from fedwsq.evaluation import Scores
from fedwsq.federation.site import Failure, Order, Reply, Site

Answer: TypeAlias = tuple[bytes, bytes]  # a tag and what it tags
HELD = 2  # broadcasts that a worker keeps: a chained downlink has two a round
# Short tasks are handed out ahead, so that a worker need not wait for the next while its parent is busy.
AHEAD_SECONDS, MOST_AHEAD = 0.02, 8
LONGEST_AHEAD_BYTES = 8192  # with more in the pipe, both ends might wait for the other to read
# A step of training takes and returns hundreds of megabytes. Handed back to the system each time, they come back as
# fresh pages, each at the price of a fault: ten thousand a step of ResNet-18. (glibc; elsewhere nobody reads these.)
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**29)}


class Task(NamedTuple):
    """What a worker is asked: a broadcast and a frame that builds on it."""

    body: bytes
    frame: bytes


class Backend(Protocol):
    """Where clients run. `body` is the broadcast, carried once a round; replies come in any order."""

    def dispatch(self, body: bytes, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Have every order worked on; a lost reply is missing or a `Failure`."""
        ...

    def evaluate(self, body: bytes, starts: Sequence[int]) -> list[Scores]:
        """Score the broadcast model on each of the evaluation batches that start there, in their order."""
        ...

    def close(self) -> None:
        """Let go of whatever the backend holds."""
        ...


class Serial:
    """All clients one after the other in this process, on one thread, as a worker would."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def dispatch(self, body: bytes, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Serve the orders as they come."""
        for order in orders:
            with one_thread():
                answer = attempt(self.site, body, order)
            yield answer

    def evaluate(self, body: bytes, starts: Sequence[int]) -> list[Scores]:
        """Score batch after batch."""
        try:
            with one_thread():
                return [self.site.evaluate(body, start) for start in starts]
        except Exception as error:
            raise RunError(f"evaluation failed: {reason(error)}") from error

    def close(self) -> None:
        """Nothing to let go of."""


class Pool:
    """Worker processes, each with one order at a time, or a few short ones.

    One that dies is replaced, and the client it was working for has failed.
    """

    MAX_DEATHS = (
        3  # in a row, of workers that never answered: then something is wrong with every worker
    )

    def __init__(
        self, plan_toml: str, workers: int, device: torch.device, store: Path | None = None
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if (
            store is None
        ):  # not a run in a directory; any worker may be asked for any client, so they share one
            self._temporary = tempfile.TemporaryDirectory(prefix="fedwsq-clients-")
            store = Path(self._temporary.name)
        self._setup, self._device = _setup(plan_toml, device, store), device
        self._workers = [_Worker(self._setup, gpu_for(slot, device)) for slot in range(workers)]
        self._deaths = 0

    def adopt(self, plan_toml: str, device: torch.device, store: Path | None = None) -> None:
        """Go on with another plan in the same processes: starting one costs seconds."""
        self._setup = _setup(plan_toml, device, store)

    def dispatch(self, body: bytes, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Hand the orders out as workers come free, the longest first: none is left to work alone at the end."""
        orders = sorted(orders, key=lambda order: -order.cost)
        for index, answer in self._scatter(
            [Task(order.body or body, b"O" + order.head) for order in orders]
        ):
            key = orders[index].key
            if answer is None:
                yield Failure(key, "its worker process died")
            elif answer[0] == b"R":
                yield Reply(key, answer[1])
            else:
                yield Failure(key, answer[1].decode())

    def evaluate(self, body: bytes, starts: Sequence[int]) -> list[Scores]:
        """Split the batches over the workers."""
        scores: dict[int, Scores] = {}
        while missing := [
            start for start in starts if start not in scores
        ]:  # after a death, ask again
            for index, answer in self._scatter([Task(body, b"E%d" % start) for start in missing]):
                if answer is not None and answer[0] == b"F":
                    raise RunError(f"evaluation failed: {answer[1].decode()}")
                if answer is not None:
                    scores[missing[index]] = _read_scores(answer[1])
        return [scores[start] for start in starts]

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.stop()
        self._workers = []
        if self._temporary is not None:
            self._temporary.cleanup()

    def _scatter(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Answer | None]]:
        """The answer to every task by its index, as they arrive; None: the worker died."""
        waiting = deque(enumerate(tasks))
        with _Shelf() as shelf:
            try:
                for slot in range(len(self._workers)):
                    self._hand_out(slot, waiting, shelf)
                while busy := {
                    worker.pipe: slot for slot, worker in enumerate(self._workers) if worker.asked
                }:
                    for pipe in wait(list(busy)):
                        slot = busy[pipe]  # type: ignore[index]
                        asked, answer = self._workers[slot].asked, self._workers[slot].answer()
                        index, _ = asked.popleft()
                        if answer is None:
                            waiting.extendleft(reversed(asked))  # those it had not begun
                            self._replace(slot)
                        else:
                            self._workers[slot].answered, self._deaths = True, 0
                        self._hand_out(slot, waiting, shelf)
                        yield index, answer
            finally:
                for slot, worker in enumerate(
                    self._workers
                ):  # none if closed before this round was over
                    if (
                        worker.asked
                    ):  # abandoned half-way: their answers must not reach the next round
                        worker.stop()
                        self._workers[slot] = _Worker(self._setup, gpu_for(slot, self._device))

    def _hand_out(self, slot: int, waiting: deque[tuple[int, Task]], shelf: "_Shelf") -> None:
        """Give a worker its next task, or several short ones."""
        while waiting and self._workers[slot].has_room(waiting[0][1]):
            index, task = waiting[0]
            if self._workers[slot].ask(self._setup, shelf.put(task.body), task.frame):
                self._workers[slot].asked.append((index, task))
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
        self._workers[slot] = _Worker(self._setup, gpu_for(slot, self._device))


class Recorded:
    """A backend that also keeps every message that passes, as files for `fedwsq inspect`."""

    def __init__(self, inner: Backend, folder: Path) -> None:
        self.inner, self.folder = inner, folder
        folder.mkdir(exist_ok=True)

    def dispatch(self, body: bytes, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Write the broadcast and the orders, then each reply as it comes."""
        shared: dict[str, bytes] = {}
        for order in orders:
            round_name = f"round-{order.key.round}"
            shared |= {
                f"{round_name}-broadcast": body,
                **({f"{round_name}-whole": order.body} if order.body else {}),
            }
            (self.folder / f"{round_name}-client-{order.key.client}-order.fwsq").write_bytes(
                order.head
            )
        for name, data in shared.items():
            (self.folder / f"{name}.fwsq").write_bytes(data)
        for answer in self.inner.dispatch(body, orders):
            if isinstance(answer, Reply):
                name = f"round-{answer.key.round}-client-{answer.key.client}.fwsq"
                (self.folder / name).write_bytes(answer.payload)
            yield answer

    def evaluate(self, body: bytes, starts: Sequence[int]) -> list[Scores]:
        """Not traffic: passed on."""
        return self.inner.evaluate(body, starts)

    def close(self) -> None:
        """Passed on."""
        self.inner.close()


class _Placed(NamedTuple):
    """A broadcast on the shelf; no two ever have the same number."""

    number: int
    descriptor: int
    length: int


class _Shelf:
    """Broadcasts in memory that workers map: each is written once, however many of them read it."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._placed: dict[int, tuple[bytes, _Placed]] = {}  # by identity

    def put(self, body: bytes) -> _Placed:
        """Where workers find `body`."""
        if id(body) not in self._placed:
            descriptor = _nameless(body)
            self._placed[id(body)] = (body, _Placed(next(self._numbers), descriptor, len(body)))
        return self._placed[id(body)][1]

    def __enter__(self) -> "_Shelf":
        return self

    def __exit__(self, *_: object) -> None:
        for _body, placed in self._placed.values():
            os.close(placed.descriptor)


def _nameless(data: bytes) -> int:
    """A descriptor of a file that has no name and lives in memory, where the system has such, and holds `data`."""
    if hasattr(
        os, "memfd_create"
    ):  # not bound by the size of /dev/shm, which containers keep small
        descriptor = os.memfd_create("fedwsq")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor


class _Worker:
    """One worker process and the pipe to it."""

    def __init__(self, setup: bytes, environment: Mapping[str, str] | None = None) -> None:
        self.pipe, theirs = Pipe()
        paths = [path or os.getcwd() for path in sys.path]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            # -P: our own sys.path, without the working directory in front of it.
            [
                sys.executable,
                "-P",
                "-m",
                "fedwsq.transports.worker",
                str(theirs.fileno()),
                str(os.getpid()),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={
                **MALLOC,
                **os.environ,
                **threads,
                **(environment or {}),
                "PYTHONPATH": os.pathsep.join(paths),
            },
            process_group=0,  # Ctrl-C is for the parent alone
        )
        theirs.close()
        self.answered = False
        self.asked: deque[tuple[int, Task]] = deque()  # what it has not answered yet
        self._pace, self._since = (
            math.inf,
            0.0,
        )  # seconds of the last task, and when the next one began
        self._setup, self._held = setup, deque[int](maxlen=HELD)
        self.pipe.send_bytes(b"P" + setup)

    def has_room(self, task: Task) -> bool:
        """Whether it can take this one on top of those it has."""
        if not self.asked:
            return True
        short = len(self.asked) < min(MOST_AHEAD, AHEAD_SECONDS / self._pace)
        return short and len(task.frame) <= LONGEST_AHEAD_BYTES

    def ask(self, setup: bytes, body: _Placed, task: bytes) -> bool:
        """Hand over a task, and plan and broadcast if new to this worker; False when the worker is gone."""
        self._since = self._since if self.asked else time.perf_counter()
        try:
            if self._setup is not setup:
                self.pipe.send_bytes(b"P" + setup)
                self._setup = setup
            if body.number not in self._held:
                self.pipe.send_bytes(b"B%d" % body.length)
                send_handle(self.pipe, body.descriptor, self.process.pid)
                self._held.append(body.number)
            self.pipe.send_bytes(task[:1] + bytes([self._held.index(body.number)]) + task[1:])
        except OSError:
            return False
        return True

    def answer(self) -> Answer | None:
        """What it sent; None when it is gone."""
        try:
            answer = self.pipe.recv_bytes(), self.pipe.recv_bytes()
        except (EOFError, OSError):
            return None
        now = time.perf_counter()
        self._pace, self._since = now - self._since, now
        return answer

    def stop(self) -> str:
        """End the process, wait for it, and say how it ended."""
        self.pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)
        self.process.kill()
        return f"exit status {self.process.wait()}"


def gpu_for(slot: int, device: torch.device) -> dict[str, str]:
    """What makes a worker see one GPU of several, each the next; "cuda:1" and the like stay as they are."""
    count = torch.cuda.device_count() if device == torch.device("cuda") else 0
    if count < 2:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[slot % count]}


def attempt(site: Site, body: bytes | memoryview, order: Order) -> Reply | Failure:
    """Serve an order; whatever goes wrong is that client's failure, never the round's."""
    try:
        return site.serve(body, order)
    except Exception as error:
        return Failure(order.key, reason(error))


def reason(error: Exception) -> str:
    """An error in one line: rows and the lines of a run have room for no more."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _setup(plan_toml: str, device: torch.device, store: Path | None) -> bytes:
    return json.dumps(
        {"plan": plan_toml, "device": str(device), "store": str(store) if store else None}
    ).encode()


def write_scores(scores: Scores) -> bytes:
    """Scores as a frame's payload."""
    plain = [
        scores.examples,
        scores.value_sum,
        scores.loss_sum,
        scores.correct.tolist(),
        scores.count.tolist(),
    ]
    return json.dumps(plain).encode()


def _read_scores(data: bytes) -> Scores:
    examples, value_sum, loss_sum, correct, count = json.loads(data)
    counts = (torch.tensor(each, dtype=torch.int64) for each in (correct, count))
    return Scores(examples, value_sum, loss_sum, *counts)
