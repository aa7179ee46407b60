"""What a site has and does for its clients in a round that counts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedwsq.core.types import Params, State, Vectors

if TYPE_CHECKING:  # an extra
    from fedwsq.secure.keys import Keyring

NEEDS_SECURE = "uplink.counts and uplink.secure need an extra: pip install 'fedwsq[secure]'"


class SumKeys(NamedTuple):
    """What secure sums take besides the plan; those of a simulation are made where they are used.

    `promises` is a folder that outlives runs: what clients have ever consented to.
    """

    keyring: "Keyring | None" = None
    promises: Path | None = None


NO_KEYS = SumKeys()


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
