"""What the codecs with levels share: a code for each element, one scale for each group."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedwsq.codecs import kernels
from fedwsq.codecs.base import (
    Codec,
    Extent,
    Packet,
    Stateless,
    Values,
    flat_values,
    largest_magnitude,
    name_of,
    require_finite,
    resident_values,
    rows_of,
)
from fedwsq.codecs.coding import (
    extent,
    look_up,
    measure,
    nearest,
    pack_ratios,
    quantize,
    tables,
    uniform_draws,
)
from fedwsq.codecs.groups import Grouped, Groups, ScalePer
from fedwsq.codecs.kernels import Coded, Floats, Rounding, Scales
from fedwsq.codecs.levels import best_scale
from fedwsq.codecs.packing import Codes, check_packed, packed_bytes, unpack
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate

Unit = Literal["absmax", "mean", "norm", "std", "fitted"]
RoundingMode = Literal["nearest", "stochastic"]


class Levelled(Grouped, Codec):
    """What codecs share whose codes stand for levels, whether their scales are shared or not."""

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        return look_up(self._coded(packet, shared))

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        look_up(self._coded(packet, shared), weight, out)

    def extent(self, packet: Packet, shared: Tensor, seed: int) -> Extent:
        coded = self._coded(packet, shared)
        if len(coded.scales.each) > 1:
            return super().extent(packet, shared, seed)
        return extent(coded)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        return packed_bytes(numel, self._bits(rate))

    def _bits(self, rate: Rate) -> int:
        return self.rates.width(rate, name_of(self))

    @abstractmethod
    def _coded(self, packet: Packet, shared: Tensor) -> Coded:
        """The packet with its levels and the scales that it is decoded with."""


@dataclass(frozen=True)
class Grid(Levelled, Stateless):
    """Levels from -1 to 1 times a scale that travels with each packet; nothing is shared.

    `unit` is what a level of 1 stands for: of each group max|x|, mean|x|, the Euclidean norm, the
    std (|x| if all are equal) or, "fitted", the multiple of the std that loses least on normal
    data. "absmax" and "norm" clip nothing. `rounding = "stochastic"` takes the level below or above
    with the probabilities that make the mean exact inside the range; "nearest" is closer but
    biased. `scale_per` says which elements are a group.

    Left to write: `wire_id`, `rates` and `levels`.
    """

    unit: Unit = "absmax"
    rounding: RoundingMode = "nearest"
    scale_per: ScalePer = "tensor"
    block: int = 64
    # How a ratio is rounded where edges are not counted; other forms need `_codes` of their own.
    form: ClassVar[int] = kernels.BETWEEN

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_block()

    @abstractmethod
    def levels(self, bits: int) -> tuple[float, ...]:
        """The levels of this width, ascending, at most 2^bits."""

    @property
    def unbiased(self) -> bool:
        """Only with probabilistic rounding and nothing clipped."""
        return self.rounding == "stochastic" and self.unit in ("absmax", "norm")

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        bits = self._bits(rate)
        values = resident_values(x)
        require_finite(largest_magnitude(values), name_of(self))

        rows = rows_of(x.shape)
        groups = self.groups(len(values), rows)
        scales = Scales(self._measure(values, groups, bits), groups.size)
        if not scales.each.any():  # zeros: whatever the codes, they stand for 0
            code = bytes(packed_bytes(len(values), bits))
        elif self.rounding == "nearest" and self.form == kernels.BETWEEN:
            code = quantize(values, scales, tables(self.levels(bits)).edges, bits)
        else:
            code = self._round(flat_values(x), scales, bits, seed)
        side = tuple(scales.each.tolist())
        return Packet(code, side, rate, len(values), own_scale=True, rows=rows)

    def check(self, packet: Packet) -> None:
        """Refuse a wrong number of scales, wrong lengths and padding, and codes without a level."""
        self.check_side(packet)
        if not packet.own_scale:
            raise MessageError(
                f"a {name_of(self)} packet is decoded with its own scale; its flag is missing"
            )
        bits = self._bits(packet.rate)
        check_packed(packet.code, bits, packet.numel)

        count = len(self.levels(bits))
        if count == 2**bits or not packet.numel:
            return
        top = unpack(packet.code, bits, packet.numel).max()
        if top >= count:
            raise MessageError(
                f"a {name_of(self)} packet has code {top}; its {count} levels end at {count - 1}"
            )

    def _coded(self, packet: Packet, shared: Tensor) -> Coded:
        bits = self._bits(packet.rate)
        groups = self.groups(packet.numel, packet.rows)
        scales = Scales(np.array(packet.side, np.float32), groups.size)
        return Coded(packet.code, bits, packet.numel, tables(self.levels(bits)).levels, scales)

    def _measure(self, values: Values, groups: Groups, bits: int) -> Floats:
        """What a level of 1 stands for, in each group."""
        if self.unit == "fitted":
            return measure(values, groups, "std", best_scale(self.levels(bits)))
        return measure(values, groups, self.unit)

    def _round(self, values: Floats, scales: Scales, bits: int, seed: int) -> bytes:
        """The packed codes of each x / scale, by chance or by arithmetic."""
        draws = kernels.NEAREST
        if self.rounding == "stochastic":
            draws = uniform_draws(len(values), seed)
        if not kernels.usable(len(values), bits):
            return pack_ratios(
                values, scales, bits, lambda ratios: self._codes(ratios, bits, draws)
            )
        marks = kernels.NOTHING
        if self.form == kernels.BETWEEN:
            marks = tables(self.levels(bits)).levels
        return kernels.quantize(values, scales, bits, Rounding(self.form, marks, draws))

    def _codes(self, ratios: Floats, bits: int, draws: Floats) -> Codes:
        """The code of each x / scale in numpy.

        The level below it or, with a draw under its share of the way, the next.
        """
        q = tables(self.levels(bits)).levels
        below = nearest(ratios, q[1:-1])  # on a level: the one below, left with probability 1
        share = (ratios - q[below]) / (q[below + 1] - q[below])
        return (below + (draws < share)).astype(np.uint8)
