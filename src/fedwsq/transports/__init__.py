"""Ways to the clients: bytes out, bytes back. `base` has the contract and a ten-line example."""

from fedwsq.transports.base import Answer, Failure, Order, Reply, Serve, Transport, attempt
from fedwsq.transports.deadlines import deadline_in, in_time, is_over, seconds_left, too_late
from fedwsq.transports.pool import Pool, Setup
from fedwsq.transports.recorder import Recorder
from fedwsq.transports.serial import Serial

__all__ = [
    "Answer",
    "Failure",
    "Order",
    "Pool",
    "Recorder",
    "Reply",
    "Serial",
    "Serve",
    "Setup",
    "Transport",
    "attempt",
    "deadline_in",
    "in_time",
    "is_over",
    "seconds_left",
    "too_late",
]
