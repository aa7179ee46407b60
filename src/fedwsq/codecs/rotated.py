"""Any codec behind a random rotation, so that it meets normal data whatever the update looks like."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwsq.codecs.base import Codec, Packet, add_weighted, finite_values, rows_of
from fedwsq.codecs.danuq import Danuq
from fedwsq.codecs.eden import Eden
from fedwsq.codecs.hadamard import padded, rotate, unrotate
from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Rotated:
    """Rotates the update as `Eden` does and hands it to `inner`; the decoded vector is rotated back.

    The inner codec sees a single row of normal data, padded with zeros by 63 elements at most. Its bias, its shared
    state and its side values are those of the pair.
    """

    inner: Codec = Danuq()
    wire_id: ClassVar[int] = 9

    def __post_init__(self) -> None:
        name = type(self.inner).__name__.lower()
        if isinstance(self.inner, Rotated | Eden):
            raise ConfigError(
                f"rotated cannot hold {name}, which rotates already; use {name} as it is"
            )
        if getattr(self.inner, "scales", None) == "channel":
            raise ConfigError(
                f'rotated mixes the channels, so {name} cannot scale each; use scales = "tensor" or "block"'
            )
        if isinstance(self.inner.rates, frozenset) and min(self.inner.rates) >= 16:
            raise ConfigError(
                f"rotated gains nothing around {name}, which keeps every value by itself; use {name} as it is"
            )

    @property
    def rates(self) -> frozenset[int] | tuple[float, float]:
        """Those of the inner codec."""
        return self.inner.rates

    @property
    def unbiased(self) -> bool:
        """As the inner codec: rotating back is linear."""
        return self.inner.unbiased

    def init(self, numel: int, rows: int = 1) -> Tensor:
        """The inner codec's, for the padded vector."""
        return self.inner.init(padded(numel))

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """The inner packet of the rotated update."""
        rotated = torch.from_numpy(rotate(finite_values(x, "rotated"), seed))
        packet = self.inner.encode(rotated, shared, rate, derive(seed, "inner"))
        return packet._replace(numel=x.numel(), rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """What the inner codec checks."""
        self.inner.check(_inside(packet))

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """What the inner codec decodes, rotated back."""
        rotated = self.inner.decode(_inside(packet), shared, derive(seed, "inner"))
        return torch.from_numpy(unrotate(rotated.numpy(), packet.numel, seed))

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        """`out += weight * decode(packet)`, bit for bit."""
        add_weighted(out, self.decode(packet, shared, seed), weight)

    def fold(self, shared: Tensor, sides: Sequence[tuple[float, ...]]) -> Tensor:
        """As the inner codec learns."""
        return self.inner.fold(shared, sides)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """The inner codec's, for the padded vector."""
        return self.inner.max_bytes(padded(numel), rate)

    def side_values(self, numel: int, rows: int = 1) -> int:
        """The inner codec's, for the padded vector."""
        return self.inner.side_values(padded(numel))


def _inside(packet: Packet) -> Packet:
    """The packet as the inner codec made it."""
    return packet._replace(numel=padded(packet.numel), rows=1)
