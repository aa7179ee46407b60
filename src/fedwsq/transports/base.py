"""What a transport is: bytes out to clients, bytes back.

A transport knows nothing of models, codecs or rounds. Ten lines are enough for one:

    class Serial:
        def __init__(self, serve: Serve) -> None:
            self.serve = serve

        def dispatch(
            self, body: bytes, orders: Sequence[Order], deadline: float | None = None
        ) -> Iterator[Answer]:
            for order in orders:
                if is_over(deadline):
                    return
                yield in_time(attempt(self.serve, body, order), deadline)

        def close(self) -> None:
            pass
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from fedwsq.core.errors import StoreError
from fedwsq.core.types import Key
from fedwsq.transports.blame import in_one_line, whole


class Order(NamedTuple):
    """One piece of work for one client: an encoded message, on top of the round's broadcast."""

    key: Key  # whose work this is; the answer carries it back
    head: bytes
    body: bytes = b""  # another broadcast in place of the round's, for who cannot build on that
    cost: int = 0  # the client's examples, as far as known: the longest is best begun first


class Reply(NamedTuple):
    """What came back: an encoded message."""

    key: Key
    payload: bytes


class Failure(NamedTuple):
    """A client that could not answer, and why."""

    key: Key
    reason: str
    lost: bool = False  # it never got to answer: asked again, it might
    traceback: str = ""  # as Python prints it; "": unknown, as of a client on another machine
    late: bool = False  # it may have been able to, but not by the deadline
    errno: int = 0  # of the disk of the machine that it lives on; 0: not the disk's fault


Answer: TypeAlias = Reply | Failure
# The other end of any transport: does what an order says and returns the encoded answer, or raises.
Serve: TypeAlias = Callable[[bytes | memoryview, Order], bytes]


class Transport(Protocol):
    """Carries orders to clients and their answers back.

    What it owes:
    - Every order is answered at most once, by a `Reply` or a `Failure` with the order's own key, in
      any order. An answer that was lost may be missing: the server counts who did not answer.
    - `deadline` is a time of `time.monotonic()`. An answer that is there by then comes out. After
      it no order is begun, nobody is waited for, and the iterator ends, with a `Failure` that is
      `late` for whoever the transport knows to be too late, or without a word. Where a client
      cannot be interrupted (`Serial`), the iterator ends as soon as that client is done.
    - Without a deadline it waits for as long as an answer may still come, and never for ever: it
      gives up on whoever is gone, stopped or stuck, with a `Failure` that is `lost`. The server
      asks those once more, if there is time.
    - Nothing is raised for a client's fault. An exception out of `dispatch` means that the
      transport itself cannot go on; it ends the run, which can be resumed. So does a disk that is
      full or gone under clients of this machine (`of_this_machine`): a round without them would be
      one that an undisturbed run does not have.
    - `body` is carried once, however many orders build on it; an order's own `body` goes to that
      client in its place. Bytes arrive as they were sent, or not at all.
    - Nothing is promised about duplicates, delays or foreign answers: the server checks every
      payload, takes the first answer with the key of an order, and counts the others.
    - The iterator may be left half-way (Ctrl-C). No answer of that round may then come out of a
      later `dispatch`.

    What it may count on: one `dispatch` at a time, from one thread, and `close` as the last call,
    also after an error. It need not be able to run in another process.
    """

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]: ...

    def close(self) -> None: ...


def attempt(serve: Serve, body: bytes | memoryview, order: Order) -> Answer:
    """Serve an order; whatever goes wrong is that client's failure, never the round's."""
    try:
        return Reply(order.key, serve(body, order))
    except StoreError as error:
        return Failure(order.key, in_one_line(error), errno=error.errno or errno.EIO)
    except Exception as error:
        return Failure(order.key, in_one_line(error), traceback=whole(error))


def of_this_machine(answer: Answer) -> Answer:
    """An answer of a client that lives here; raises where this machine's disk failed it."""
    if isinstance(answer, Failure) and answer.errno:
        raise StoreError(answer.errno, os.strerror(answer.errno))
    return answer
