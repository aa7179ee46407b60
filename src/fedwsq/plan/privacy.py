"""What a client does to its update before anything of it leaves."""

from dataclasses import dataclass

from fedwsq.core.errors import ConfigError


@dataclass(frozen=True)
class Privacy:
    """Clipping and Gaussian noise on the client, before its update is coded; see `SECURITY.md`.

    The noise and who takes part in a round come from the operating system, not from the seed: such
    a run cannot be repeated. Whose data is protected is a client's, all of it.
    """

    clip: float = 1.0  # the L2 norm of all that a client sends in a round is at most this
    noise: float = 1.0  # the standard deviation of the noise on every value, in units of `clip`
    delta: float = 1e-5  # the probability with which epsilon may not hold

    def __post_init__(self) -> None:
        if not 0 < self.clip <= 1e9:
            raise ConfigError(f"clip is {self.clip}, must be above 0 and at most 1e9")
        if not 0 <= self.noise <= 1e6:
            raise ConfigError(f"noise is {self.noise}, must be from 0 (clipping alone) to 1e6")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta is {self.delta}, must be between 0 and 1, such as 1e-5")
