"""What a site does for a client in a round that counts."""

from collections.abc import Callable
from typing import NamedTuple

from fedwsq.core.types import Params, State, Vectors

NEEDS_SECURE = "uplink.counts and uplink.secure need an extra: pip install 'fedwsq[secure]'"


class Learned(NamedTuple):
    """What training came to, before anything is coded."""

    delta: Params  # with what earlier codes lost
    loss: float
    state: State
    start: Vectors
    received: str = ""  # fingerprint of all that training began with


class Work(NamedTuple):
    """What a site does for the client of an order."""

    learn: Callable[[], Learned]
    remember: Callable[[Learned, Params], None]  # with what the server will decode
