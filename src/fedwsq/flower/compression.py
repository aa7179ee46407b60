"""Two lines in somebody else's app, and its arrays travel as a few bits a weight.

strategy = fedwsq.flower.compress(FedAvg(), codec="danuq", bits=4)      # in the ServerApp
app = ClientApp(mods=[fedwsq.flower.compress_mod])                      # in the ClientApp
"""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedwsq.codecs import Codec
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Rate
from fedwsq.flower.grid import CompressedGrid, Ways
from fedwsq.parts.dictionaries import make_link


def compress(
    strategy: Strategy,
    codec: str | Codec = "danuq",
    bits: Rate | None = 4,
    down_bits: Rate | None = None,
    error_feedback: bool = True,
) -> Strategy:
    """The same strategy over smaller messages; clients need `compress_mod`, and no settings.

    With `bits`, what a client learned (its arrays less those it received) is coded; what a code
    loses the client adds to its next update, unless `error_feedback` is off. With `down_bits` the
    model is coded on its way down, and updates are still added to the exact one. None leaves a
    direction in float32. Arrays of two dimensions or more are coded; the others, integers and those
    of fewer than 16 elements travel exact.

    Goes around all other strategies: `compress(DifferentialPrivacy...(FedAvg(), ...))`.
    """
    if isinstance(strategy, Compressed):
        raise ConfigError("the strategy is compressed already; compress it once")
    up = make_link("float32", None)
    if bits is not None:
        up = make_link(codec, bits, error_feedback)
    down = None
    if down_bits is not None:
        down = make_link(codec, down_bits)
    return Compressed(strategy, Ways(up, down))


class Compressed(Strategy):
    """A strategy that starts on a grid of smaller messages, and is otherwise the one inside."""

    def __init__(self, strategy: Strategy, ways: Ways) -> None:
        self.strategy = strategy
        self.ways = ways

    # Whatever its `start` takes: strategies may have one of their own, with more arguments.
    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        return self.strategy.start(CompressedGrid(grid, self.ways), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What else the strategy inside has."""
        return getattr(self.strategy, name)

    # Only a strategy around this one calls these, and it would see coded replies.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        raise self._inside()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        raise self._inside()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        raise self._inside()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        raise self._inside()

    def summary(self) -> None:
        self.strategy.summary()

    def _inside(self) -> ConfigError:
        return ConfigError(
            "compress works through start(), and another strategy is around it; "
            "put compress around that one"
        )
