"""Who failed, and the whole of what Python said: `failures.log` of a run, or a stop."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from fedwsq.core.errors import FedwsqError, RunError
from fedwsq.core.files import without_links, write_atomically
from fedwsq.core.text import printable
from fedwsq.transports import Answer, Failure, Order, Transport
from fedwsq.transports.blame import in_one_line
from fedwsq.wire import Kind, kind_of

LOG = "failures.log"
ERROR = "error.txt"  # why a run gave up; gone when it goes on
MAX_LOG_BYTES = 10_000_000  # the first failures say more than the ten thousandth
FULL = "\nThis file is full; later failures are only in rounds.jsonl.\n"


@contextmanager
def keeping_reason(folder: Path) -> Iterator[None]:
    """Around a run: if it gives up, its directory says why. Ctrl-C is no failure."""
    (folder / ERROR).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        known = isinstance(error, FedwsqError)  # then it is made to be read
        text = printable(str(error) if known else in_one_line(error))
        with suppress(OSError):  # a full disk may be the reason
            data = f"{text}\n".encode(errors="backslashreplace")
            write_atomically(folder / ERROR, data)
        raise


class ClientFailed(RunError):
    """The first failure of a run that is to stop there; its note is the whole traceback."""

    def __init__(self, who: str, failure: Failure) -> None:
        super().__init__(f"{who}: {printable(failure.reason)}")
        self.traceback = printable(failure.traceback)
        if self.traceback:
            self.add_note(self.traceback)


class Watch(Protocol):
    """Is told of every failure, in words who it was; what it raises ends the run."""

    def __call__(self, who: str, failure: Failure) -> None: ...


class Log:
    """Appends tracebacks to a run's log, which is not there before the first."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG

    def __call__(self, who: str, failure: Failure) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if not failure.traceback or size > MAX_LOG_BYTES:
            return
        text = f"{who}: {printable(failure.reason)}\n{printable(failure.traceback)}\n"
        data = text.encode(errors="backslashreplace")
        if size + len(data) > MAX_LOG_BYTES:
            data += FULL.encode()
        with open(self.path, "ab", opener=without_links) as file:
            file.write(data)


def stop_at_once(who: str, failure: Failure) -> None:
    """The way of `--debug`: no failure is passed over."""
    raise ClientFailed(who, failure)


class Watched:
    """A transport around a transport: tells of failures as they pass."""

    def __init__(self, inner: Transport, watches: Sequence[Watch]) -> None:
        self.inner = inner
        self.watches = watches

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        if not orders:
            return
        kind = kind_of(orders[0].head)
        for answer in self.inner.dispatch(body, orders, deadline):
            # One that was lost with its worker is asked again, or counted by the server.
            if isinstance(answer, Failure) and not answer.lost:
                who = _who(kind, answer)
                for watch in self.watches:
                    watch(who, answer)
            yield answer

    def close(self) -> None:
        self.inner.close()


def _who(kind: Kind, failure: Failure) -> str:
    """Words for a failure's place in the run."""
    client = f"round {failure.key.round}, client {failure.key.client}"
    if kind is Kind.SCORE:  # of the server's own test data, which no client holds
        return f"round {failure.key.round}, evaluation"
    if kind is Kind.EVALUATE:
        return f"{client}, evaluation"
    return client
