"""Any codec behind a random rotation, so that it meets normal data whatever the update is like."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwsq.codecs.base import Codec, Packet, Side, finite_values, name_of, rows_of
from fedwsq.codecs.danuq import Danuq
from fedwsq.codecs.eden import Eden
from fedwsq.codecs.groups import Grouped
from fedwsq.codecs.hadamard import padded, rotate, unrotate
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Rotated(Codec):
    """Rotates the update as `Eden` does and hands it to `inner`; what it decodes is rotated back.

    The inner codec sees a single row of normal data, padded with zeros by 63 elements at most. Its
    bias, its shared state and its side values are those of the pair.
    """

    inner: Codec = Danuq()
    wire_id = 9

    def __post_init__(self) -> None:
        name = name_of(self.inner)
        if isinstance(self.inner, Rotated | Eden):
            raise ConfigError(
                f"rotated cannot hold {name}, which rotates already; use {name} as it is"
            )
        if isinstance(self.inner, Grouped) and self.inner.scale_per == "channel":
            raise ConfigError(
                f"rotated mixes the channels, so {name} cannot scale each; "
                'use scale_per = "tensor" or "block"'
            )
        if self.rates.fixed_length and self.rates.listed[0] >= 16:
            raise ConfigError(
                f"rotated gains nothing around {name}, which keeps every value by itself; "
                f"use {name} as it is"
            )

    @property
    def rates(self) -> Rates:
        return self.inner.rates

    @property
    def unbiased(self) -> bool:
        """As the inner codec: rotating back is linear."""
        return self.inner.unbiased

    def init(self, numel: int, rows: int = 1) -> Tensor:
        return self.inner.init(padded(numel))

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        rotated = torch.from_numpy(rotate(finite_values(x, "rotated"), seed))
        # A seed of its own: the rotation has drawn from this one.
        packet = self.inner.encode(rotated, shared, rate, derive(seed, "inner"))
        return packet._replace(numel=x.numel(), rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        self.inner.check(_inside(packet))

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        rotated = self.inner.decode(_inside(packet), shared, derive(seed, "inner"))
        return torch.from_numpy(unrotate(rotated.numpy(), packet.numel, seed))

    def fold(self, shared: Tensor, sides: Sequence[Side]) -> Tensor:
        return self.inner.fold(shared, sides)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        return self.inner.max_bytes(padded(numel), rate)

    def side_values(self, numel: int, rows: int = 1) -> int:
        return self.inner.side_values(padded(numel))


def _inside(packet: Packet) -> Packet:
    """The packet as the inner codec made it."""
    return packet._replace(numel=padded(packet.numel), rows=1)
