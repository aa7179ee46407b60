"""How fast a node's link and machine are, from when messages left and answers came.

Four times are known of an exchange: the server's, when it handed the message over and when it had
the answer, and the node's, when its process had the message and when it was done. What is between
the node's two is work. What is before is the way there: for a message of a few bytes it is waiting
(an idle SuperNode sleeps for 3 s) and starting a process, for a longer one also the bytes. So a
short message says what to take off a long one, and with it goes the difference between the clocks.
Waiting only ever adds: the quickest of the last few exchanges is the nearest to the truth. What is
quicker than waiting varies by says only that a link is at least so fast: more bits are granted, and
the next message says more. All is forgotten after a while: who was too slow to be asked is tried
again. A node's first answer is not one to add: it has the node's start in it.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from fedwsq.core.types import Channel
from fedwsq.wire.channels import bounded

SHORT_BYTES = 16_384  # as good as none
# How much waiting varies. There: an idle SuperNode sleeps for 3 s. Back: it looks twice a second
# whether its client is done, and Flower's grid looks again after 1 s for what is not there yet.
DOWN_SECONDS = 3.0
UP_SECONDS = 1.5
REMEMBERED = 5  # exchanges: a link may change
FORGOTTEN_SECONDS = 600.0


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
        return Way(self.began - self.pushed, self.down_bytes, self.arrived)

    @property
    def up(self) -> "Way":
        return Way(self.arrived - self.ended, self.up_bytes, self.arrived)


class Way(NamedTuple):
    """One direction of an exchange; between two clocks, so only differences mean anything."""

    seconds: float
    bytes: int
    at: float  # the server's clock


@dataclass
class Ways:
    """One direction, over the last exchanges."""

    varies: float  # seconds
    wait: float | None = None  # of the quickest short message
    last: deque[Way] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def add(self, way: Way) -> None:
        short = way.bytes <= SHORT_BYTES
        if not short:
            self.last.append(way)
        if self.wait is not None:  # which nothing is quicker than
            self.wait = min(self.wait, way.seconds)
        elif short:
            self.wait = way.seconds

    def bytes_per_second(self, now: float) -> float | None:
        """None if no short message was timed, or no long one lately."""
        if self.wait is None:
            return None
        rates = [
            way.bytes / max(way.seconds - self.wait, self.varies)
            for way in self.last
            if way.at > now - FORGOTTEN_SECONDS
        ]
        return max(rates, default=None)


@dataclass
class Speed:
    """Of one node, as far as it is known."""

    down: Ways = field(default_factory=lambda: Ways(DOWN_SECONDS))
    up: Ways = field(default_factory=lambda: Ways(UP_SECONDS))
    steps: deque[Exchange] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    heard: float = 0.0  # when the last answer came, by the server's clock; 0: none was timed

    def add(self, exchange: Exchange) -> None:
        self.heard = exchange.arrived
        self.down.add(exchange.down)
        self.up.add(exchange.up)
        if exchange.steps:
            self.steps.append(exchange)

    def seconds_per_step(self, now: float) -> float | None:
        found = [
            (exchange.ended - exchange.began) / exchange.steps
            for exchange in self.steps
            if exchange.arrived > now - FORGOTTEN_SECONDS
        ]
        return min(found, default=None)

    def channel(self, first: Channel, now: float) -> Channel:
        """What was measured, and for the rest the first estimate."""
        latency = None
        lately = self.heard > now - FORGOTTEN_SECONDS
        if lately and self.down.wait is not None and self.up.wait is not None:
            # There and back: the difference between the clocks is in one and off the other.
            latency = (self.down.wait + self.up.wait) / 2
        measured = (
            self.up.bytes_per_second(now),
            self.down.bytes_per_second(now),
            latency,
            self.seconds_per_step(now),
        )
        pairs = zip(measured, first, strict=True)
        return bounded(*(guess if value is None else value for value, guess in pairs))
