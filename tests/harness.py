"""What tests of runs share: a plan that takes a second, real `fedwsq` processes, patience, and
greetings.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key
from fedwsq.federation.asking import Asking
from fedwsq.federation.charter import Charter
from fedwsq.federation.hello import Introduction, encode_hello, read_introduction
from fedwsq.federation.owners import Census
from fedwsq.plan import Plan, load_plan
from fedwsq.transports import Answer, Failure, Order, Reply, Transport
from fedwsq.wire import Kind, kind_of

TESTS = Path(__file__).parent
TINY = {"rounds": 3, "training.epochs": 1, "training.batches_per_epoch": 2}
PATIENCE_SECONDS = 300.0  # for what takes a moment: a busy machine is no failure


def tiny(**overrides: Any) -> Plan:
    """The quick start with hardly any work in it: `tiny(rounds=2, **{"data.clients": 4})`."""
    return load_plan("quickstart", TINY | overrides)


def tiny_words(**overrides: Any) -> list[str]:
    """The same as words of a command: `tiny_words(rounds=1)`."""
    return [f"{key}={value}" for key, value in (TINY | overrides).items()]


TINY_WORDS = tiny_words()


def start(
    *words: str | Path, cwd: Path, stuck: Path | None = None, **options: Any
) -> subprocess.Popen[str]:
    """A real `fedwsq` process, with `user_code` in reach.

    `stuck` is the link to whoever will `stay` there.
    """
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    held = {"TEST_STUCK": str(stuck)} if stuck else {}
    return subprocess.Popen(
        [sys.executable, "-m", "fedwsq.cli", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **held},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def all_shown(controller: int) -> str:
    """What a process shows on a terminal, until it ends; closes our side of the terminal."""
    shown = b""
    try:
        while chunk := os.read(controller, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(controller)
    return shown.decode()


class Kept:
    """A transport around a real one that keeps what passes in training, by round and client."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.body = b""  # of the last round
        self.orders: dict[int, dict[int, Order]] = {}
        self.replies: dict[int, dict[int, bytes]] = {}

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        if not orders or kind_of(orders[0].head) is not Kind.ORDER:
            yield from self.inner.dispatch(body, orders, deadline)
            return
        self.body = body
        number = orders[0].key.round
        self.orders.setdefault(number, {}).update({each.key.client: each for each in orders})
        self.replies.setdefault(number, {})
        for answer in self.inner.dispatch(body, orders, deadline):
            if isinstance(answer, Reply):
                self.replies[number][answer.key.client] = answer.payload
            yield answer

    def close(self) -> None:
        self.inner.close()


def rows(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of rounds.jsonl."""
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_until(true: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for something that another process does; `process` is to be alive until then."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended early: {process.communicate()}")
        assert time.monotonic() < end, f"waited {PATIENCE_SECONDS} s in vain"
        time.sleep(0.01)


def who_is_stuck(link: Path, process: subprocess.Popen[str] | None = None) -> psutil.Process:
    """Wait until somebody stays (`user_code.stay`), and say which process that is."""
    wait_until(link.is_symlink, process)
    return psutil.Process(int(os.readlink(link)))


def gone(process: psutil.Process) -> bool:
    """Ended; a zombie that nobody has collected counts."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what differs between two equal runs: how long things took."""
    return {key: value for key, value in row.items() if not key.endswith("seconds")}


def greet(
    charter: Charter,
    transport: Transport,
    clients: Iterable[int],
    run: bytes = bytes(16),
    deadline: float | None = None,
) -> dict[int, Introduction | str]:
    """Ask clients who they are; a string says why one cannot take part.

    `deadline` is as in `Transport.dispatch`.
    """
    orders = []
    for client in clients:
        key = Key(charter.plan.seed, 0, client)
        orders.append(Order(key, encode_hello(charter, client, run)))
    found: dict[int, Introduction | str] = {}
    for answer in Asking(transport, b"", orders, deadline):
        # The first answer counts.
        found.setdefault(answer.key.client, _read(charter, answer, run))
    return {order.key.client: found.get(order.key.client, "no reply") for order in orders}


def _read(charter: Charter, answer: Answer, run: bytes) -> Introduction | str:
    if isinstance(answer, Failure):
        return answer.reason
    try:
        return read_introduction(charter, answer, run)
    except MessageError as error:
        return str(error)


def told(found: Mapping[int, Introduction | str]) -> Census:
    """What a server knows of its clients' data once they have said how much they hold."""
    sizes = {
        client: about.examples for client, about in found.items() if isinstance(about, Introduction)
    }
    return Census(sizes.get)
