"""UQ: uniform levels over the update's own range, with probabilistic rounding, as FedPAQ uses it (arXiv:1909.13014)."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Packet
from fedwsq.codecs.packing import check_packed, pack, packed_bytes, unpack
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Uq:
    """Uniform quantization: 2^bits evenly spaced levels from -max|x| to max|x|, both included.

    The scale travels with each tensor; nothing is shared. `rounding = "stochastic"` takes the level below or above with
    the probabilities that make the mean exact; "nearest" is closer but biased, and at one bit sends every value to
    an end. The range is max|x|, not a multiple of the std: clipping the tails would end the unbiasedness.
    """

    rounding: Literal["stochastic", "nearest"] = "stochastic"
    wire_id: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.rounding not in ("stochastic", "nearest"):
            raise ConfigError(f'uq rounding = "{self.rounding}" is unknown; it is "stochastic" or "nearest"')

    @property
    def rates(self) -> frozenset[int]:
        """1 to 8 bits."""
        return frozenset(range(1, 9))

    @property
    def unbiased(self) -> bool:
        """Yes, unless it rounds to the nearest level."""
        return self.rounding == "stochastic"

    def init(self, numel: int) -> Tensor:
        """Nothing is shared."""
        return torch.empty(0)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """A neighbouring level of each value, and max|x| beside them."""
        bits, x = self._bits(rate), x.detach()
        largest = float(np.abs(x.numpy(force=True)).max(initial=0.0))
        if not largest <= MAX_MAGNITUDE:  # NaN fails too
            raise UpdateError(
                f"uq cannot code an update that is not finite or above {MAX_MAGNITUDE:g}; "
                "lower the learning rate or clip"
            )
        if largest == 0:
            return Packet(bytes(packed_bytes(x.numel(), bits)), (0.0,), rate, x.numel(), own_scale=True)
        u: Tensor | float = 0.5
        if self.rounding == "stochastic":
            u = torch.rand(x.numel(), generator=torch.Generator().manual_seed(seed))
        codes = quantize_uniform(x, largest, bits, u)
        return Packet(pack(codes, bits), (largest,), rate, x.numel(), own_scale=True)

    def check(self, packet: Packet) -> None:
        """Every code is a level, so only the scale's presence, lengths and padding can be wrong."""
        if len(packet.side) != 1:
            raise MessageError(f"a uq packet has 1 side value, its scale, not {len(packet.side)}")
        if not packet.own_scale:
            raise MessageError("a uq packet is decoded with its own scale; its flag is missing")
        check_packed(packet.code, self._bits(packet.rate), packet.numel)

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The level of each code, times max|x|."""
        return self._look_up(packet, 1.0)

    def accumulate(self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float) -> None:
        """`out += weight * decode(packet)`, bit for bit: the weight goes into the table of levels."""
        out += self._look_up(packet, weight)

    def fold(self, shared: Tensor, sides: Sequence[tuple[float, ...]]) -> Tensor:
        """Nothing to learn."""
        return shared

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Exactly the packed codes."""
        return packed_bytes(numel, self._bits(rate))

    def _bits(self, rate: Rate) -> int:
        if rate not in self.rates:
            raise ConfigError(f"uq has no {rate:g}-bit rate; it offers 1 to 8")
        return int(rate)

    def _look_up(self, packet: Packet, weight: float) -> Tensor:
        bits = self._bits(packet.rate)
        table = uniform_levels(bits) * packet.side[0] * weight
        # numpy's take, which reads uint8 indices as they are.
        return torch.from_numpy(table.numpy().take(unpack(packet.code, bits, packet.numel).numpy()))


def quantize_uniform(x: Tensor, m: float, bits: int, u: Tensor | float) -> Tensor:
    """The codes, uint8, of `x` on 2^bits levels from -m to m: floor(f) + [u < f - floor(f)], f = (x + m) / step.

    With `u` uniform on [0, 1) the level's expectation is `x`. With u = 1/2 it is the nearest, the lower of two equals.
    """
    top = 2**bits - 1
    # (x / m + 1) * top / 2 is f, and exact at x = -m, 0 and m; a step of 2 m / top may be off there, or vanish.
    f = (x / m).add_(1).mul_(top / 2)
    k = f.floor()
    k += u < f.sub_(k)
    return k.clamp_(0, top).to(torch.uint8)


@functools.cache
def uniform_levels(bits: int) -> Tensor:
    """2^bits evenly spaced levels from -1 to 1, in float32: symmetric, exact at both ends."""
    top = 2**bits - 1
    return torch.tensor([(2 * k - top) / top for k in range(top + 1)], dtype=torch.float32)
