"""How fast a node's link and machine are, from when messages left and answers came.

Four times are known of an exchange: the server's, when it handed the message over and when it had
the answer, and the node's, when its process had the message and when it was done. What is between
the node's two is work. What is before is the way there: for a message of a few bytes it is waiting
(an idle SuperNode sleeps for 3 s) and starting a process, for a longer one also the bytes. So a
short message says what to take off a long one, and with it goes the difference between the clocks.
Waiting only ever adds: the quickest of the last few exchanges is the nearest to the truth.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from fedwsq.core.types import Channel
from fedwsq.wire.channels import bounded

SHORT_BYTES = 16_384  # as good as none
LEAST_SECONDS = 0.05  # what is quicker cannot be told from waiting
REMEMBERED = 5  # exchanges: a link may change


class Exchange(NamedTuple):
    """A message to a node and its answer; seconds since 1970, by two clocks."""

    pushed: float
    began: float  # by the node's clock, as the next
    ended: float
    arrived: float
    down_bytes: int
    up_bytes: int
    steps: int = 0  # of training

    @property
    def down(self) -> "Way":
        return Way(self.began - self.pushed, self.down_bytes)

    @property
    def up(self) -> "Way":
        return Way(self.arrived - self.ended, self.up_bytes)


class Way(NamedTuple):
    """One direction of an exchange; between two clocks, so only differences mean anything."""

    seconds: float
    bytes: int


@dataclass
class Ways:
    """One direction, over the last exchanges."""

    wait: float | None = None  # of the quickest short message
    last: deque[Way] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def add(self, way: Way) -> None:
        if way.bytes > SHORT_BYTES:
            self.last.append(way)
        elif self.wait is None or way.seconds < self.wait:
            self.wait = way.seconds

    def bytes_per_second(self) -> float | None:
        """None before a short and a long message were timed."""
        if self.wait is None or not self.last:
            return None
        return max(way.bytes / max(way.seconds - self.wait, LEAST_SECONDS) for way in self.last)


@dataclass
class Speed:
    """Of one node, as far as it is known."""

    down: Ways = field(default_factory=Ways)
    up: Ways = field(default_factory=Ways)
    seconds_per_step: float | None = None

    def add(self, exchange: Exchange) -> None:
        self.down.add(exchange.down)
        self.up.add(exchange.up)
        if exchange.steps:
            self.seconds_per_step = (exchange.ended - exchange.began) / exchange.steps

    def channel(self, first: Channel) -> Channel:
        """What was measured, and for the rest the first estimate."""
        latency = None
        if self.down.wait is not None and self.up.wait is not None:
            # There and back: the difference between the clocks is in one and off the other.
            latency = (self.down.wait + self.up.wait) / 2
        measured = (
            self.up.bytes_per_second(),
            self.down.bytes_per_second(),
            latency,
            self.seconds_per_step,
        )
        pairs = zip(measured, first, strict=True)
        return bounded(*(guess if value is None else value for value, guess in pairs))
