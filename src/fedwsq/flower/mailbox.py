"""Messages out, and answers as they come, each waited for on its own.

Flower's pull returns once every answer that has begun to come is there to its last byte. Asked for
all of them at once, a slow node would hold up the others and the deadline of the round, and nobody
could be timed.
"""

import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

POLL_SECONDS = 0.1
# The longer an answer takes, the less a moment matters: a question costs the SuperLink and us
# milliseconds of a machine that nodes may be training on.
POLL_SHARE = 0.05  # of how long it was waited for,
MOST_POLL_SECONDS = 0.5  # and no more: answers are timed
MOST_A_SECOND = 30.0  # questions to the SuperLink: as many as a hundred idle nodes ask


class Letter(NamedTuple):
    """An answer that is there."""

    answers: str  # the id of the message
    message: Message
    arrived: float  # seconds since 1970


class Mailbox:
    """Waits for answers in threads, which end with this process."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._arrived: SimpleQueue[Letter | BaseException] = SimpleQueue()
        self._expected: set[str] = set()

    def post(self, message: Message) -> list[str]:
        """Hand a message over: its id, or none if it was not taken.

        Flower tries again without end while its SuperLink is away. It does so in a thread of its
        own: a main thread that waits without a limit does not hear the signal by which another
        thread, Flower's watch over the SuperLink, ends the ServerApp.
        """
        done: SimpleQueue[list[str] | BaseException] = SimpleQueue()

        def push() -> None:
            try:
                done.put([number for number in self._grid.push_messages([message]) if number])
            except BaseException as error:  # whatever it is, it is for who waits
                done.put(error)

        Thread(target=push, daemon=True).start()
        while True:
            with suppress(Empty):
                came = done.get(timeout=POLL_SECONDS)
                if isinstance(came, BaseException):
                    raise came
                return came

    def expect(self, number: str) -> None:
        """Wait for the answer to a message; it comes out of `take`."""
        self._expected.add(number)
        Thread(target=self._wait, args=(number,), daemon=True).start()

    def take(self, seconds: float) -> list[Letter]:
        """What has come; if nothing has, the first to come within some seconds."""
        found: list[Letter] = []
        with suppress(Empty):
            while True:
                came = self._arrived.get(timeout=0 if found else seconds)
                if isinstance(came, BaseException):
                    raise came
                found.append(came)
        return found

    def _wait(self, number: str) -> None:
        began = time.monotonic()
        try:
            while number in self._expected:
                patient = min(POLL_SHARE * (time.monotonic() - began), MOST_POLL_SECONDS)
                time.sleep(max(POLL_SECONDS, patient, len(self._expected) / MOST_A_SECOND))
                for message in self._grid.pull_messages([number]):
                    # By what it answers: the error of a node that died carries another's id.
                    answers = message.metadata.reply_to_message_id
                    self._arrived.put(Letter(answers, message, time.time()))
                    self._expected.discard(answers)
        except BaseException as error:  # whatever it is, it is for who asks next
            self._arrived.put(error)
