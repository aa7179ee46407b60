"""How far a single reply may go before it counts."""

from dataclasses import dataclass

from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import ABOVE_0_FINITE, require


@dataclass(frozen=True)
class Bounds:
    """What a server holds replies against; honest training meets none of it.

    `docs/robustness.md` has what was measured of honest replies, and what each bound stops.
    """

    # A reply is refused when a decoded value is larger.
    magnitude: float = 1e9
    # The norm of an update is cut to so many times the usual; 0 is off.
    norm: float = 2.5
    # A client's own scales move the shared one by at most so many times what is usual.
    scale: float = 5.0
    # A number of examples that the server has only been told counts up to so many times the usual.
    weight: float = 10.0

    def __post_init__(self) -> None:
        require(ABOVE_0_FINITE, magnitude=self.magnitude)
        if self.norm != 0 and not self.norm >= 1:
            raise ConfigError(f"norm is {self.norm}, must be at least 1, or 0 for no clipping")
        for name in ("scale", "weight"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
