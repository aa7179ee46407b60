"""What the codecs with levels and a scale of their own share: a code for each element, one scale for each group."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs import kernels, reference
from fedwsq.codecs.base import (
    Alone,
    Packet,
    Values,
    flat_values,
    largest_magnitude,
    on_gpu,
    require_finite,
    resident_values,
    rows_of,
)
from fedwsq.codecs.groups import (
    Floats,
    Groups,
    Measured,
    Scales,
    Survey,
    check_scales,
    check_sides,
    largest,
    make_groups,
    mean_magnitude,
    norm,
    self_scale,
)
from fedwsq.codecs.levels import best_scale, edges
from fedwsq.codecs.packing import check_packed, pack, packed_bytes, unpack
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate

Codes = NDArray[np.uint8]
CHUNK = 2**14  # elements that stay in the cache while all edges pass
Statistic = Callable[[Floats], Measured]
STATISTICS: dict[str, Statistic] = {
    "absmax": largest,
    "mean": mean_magnitude,
    "norm": norm,
    "std": self_scale,
}
OFFERS = {"scale": (*STATISTICS, "fitted"), "rounding": ("nearest", "stochastic")}


@dataclass(frozen=True)
class Grid(Alone):
    """Levels from -1 to 1 times a scale that travels with each packet; nothing is shared.

    `scale` is what a level of 1 stands for: of each group max|x|, mean|x|, the Euclidean norm, the std (|x| if all are
    equal) or, "fitted", the multiple of the std that loses least on normal data. "absmax" and "norm" clip nothing.
    `rounding = "stochastic"` takes the level below or above with the probabilities that make the mean exact inside the
    range; "nearest" is closer but biased.
    """

    scale: Literal["absmax", "mean", "norm", "std", "fitted"] = "absmax"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    scales: Scales = "tensor"
    block: int = 64
    wire_id: ClassVar[int]
    form: ClassVar[int] = kernels.BETWEEN  # how the kernel rounds where there are no edges to count

    def __post_init__(self) -> None:
        check_scales(self.name, self.scales, self.block)
        for field, offer in OFFERS.items():
            if getattr(self, field) not in offer:
                raise ConfigError(
                    f'{self.name} {field} = "{getattr(self, field)}" is unknown; it is one of {", ".join(offer)}'
                )

    @property
    def name(self) -> str:
        """What errors call this codec."""
        return type(self).__name__.lower()

    @property
    def rates(self) -> frozenset[int]:
        """The bit widths that have levels."""
        raise NotImplementedError

    def levels(self, bits: int) -> tuple[float, ...]:
        """The levels of this width, ascending, at most 2^bits."""
        raise NotImplementedError

    @property
    def unbiased(self) -> bool:
        """Only with probabilistic rounding and nothing clipped."""
        return self.rounding == "stochastic" and self.scale in ("absmax", "norm")

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """A level for each element, and the scales beside them."""
        bits, values, rows = self._bits(rate), resident_values(x), rows_of(x.shape)
        require_finite(largest_magnitude(values), self.name)
        groups = make_groups(len(values), rows, self.scales, self.block)
        scales = self._measure(values, groups, bits)
        code = bytes(packed_bytes(len(values), bits))
        if scales.any():
            between = self._edges(bits)
            if between is not None:
                code = quantize(values, groups, scales, between, bits)
            else:
                code = self._round(flat_values(x), groups, scales, bits, seed)
        return Packet(code, tuple(scales.tolist()), rate, len(values), own_scale=True, rows=rows)

    def check(self, packet: Packet) -> None:
        """Refuse a wrong number of scales, wrong lengths and padding, and codes without a level."""
        check_sides(self.name, packet.side, self._groups(packet))
        if not packet.own_scale:
            raise MessageError(
                f"a {self.name} packet is decoded with its own scale; its flag is missing"
            )
        bits = self._bits(packet.rate)
        check_packed(packet.code, bits, packet.numel)
        count = len(self.levels(bits))
        if (
            count < 2**bits
            and packet.numel
            and (top := unpack(packet.code, bits, packet.numel).max()) >= count
        ):
            raise MessageError(
                f"a {self.name} packet has code {top}; its {count} levels end at {count - 1}"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The level of each code, times its scale."""
        return self._look_up(packet, 1.0)

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        """`out += weight * decode(packet)`, bit for bit."""
        self._look_up(packet, weight, out)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Exactly the packed codes."""
        return packed_bytes(numel, self._bits(rate))

    def side_values(self, numel: int, rows: int = 1) -> int:
        """One scale for each group."""
        return make_groups(numel, rows, self.scales, self.block).count

    def _measure(self, values: Values, groups: Groups, bits: int) -> Floats:
        """What a level of 1 stands for, in each group."""
        if self.scale != "fitted":
            return measure(values, groups, self.scale)
        return measure(values, groups, "std", best_scale(self.levels(bits)))

    def _edges(self, bits: int) -> Floats | None:
        """The edges whose number below x / scale is its code; None where `_codes` rounds."""
        return tables(self.levels(bits))[1] if self.rounding == "nearest" else None

    def _round(self, values: Floats, groups: Groups, scales: Floats, bits: int, seed: int) -> bytes:
        """The packed codes of each x / scale, by chance or by arithmetic."""
        draws = (
            uniform_draws(len(values), seed) if self.rounding == "stochastic" else kernels.NEAREST
        )
        if not kernels.usable(len(values), bits):
            return pack_ratios(
                values, groups, scales, bits, lambda ratios: self._codes(ratios, bits, draws)
            )
        q = tables(self.levels(bits))[0] if self.form == kernels.BETWEEN else kernels.NOTHING
        return kernels.quantize(values, scales, groups.size, q[1:-1], bits, self.form, draws, q)

    def _codes(self, ratios: Floats, bits: int, draws: Floats) -> Codes:
        """The code of each x / scale: the level below it, or with a draw under its share of the way, the next."""
        q = tables(self.levels(bits))[0]
        below = nearest(ratios, q[1:-1])  # on a level: the one below, left with probability 1
        share = (ratios - q[below]) / (q[below + 1] - q[below])
        return (below + (draws < share)).astype(np.uint8)

    def _groups(self, packet: Packet) -> Groups:
        return make_groups(packet.numel, packet.rows, self.scales, self.block)

    def _bits(self, rate: Rate) -> int:
        if rate not in self.rates:
            offer = ", ".join(map(str, sorted(self.rates)))
            raise ConfigError(f"{self.name} has no {rate:g}-bit rate; it offers {offer}")
        return int(rate)

    def _look_up(self, packet: Packet, weight: float, out: Tensor | None = None) -> Tensor:
        bits = self._bits(packet.rate)
        return look_up(
            packet,
            bits,
            tables(self.levels(bits))[0],
            packet.side,
            self._groups(packet),
            weight,
            out,
        )


# From here on: a tensor goes to `reference`, an array to `kernels` or, where those are not worth loading, to numpy.


def survey(values: Values, groups: Groups) -> Survey:
    """Largest and std of every group."""
    return reference.survey(values, groups) if isinstance(values, Tensor) else groups.survey(values)


def measure(values: Values, groups: Groups, statistic: str, factor: float = 1.0) -> Floats:
    """The scale of every group: the statistic of that name, times `factor`."""
    if isinstance(values, Tensor):
        return groups.measure(
            values, lambda rows: factor * reference.STATISTICS[statistic](rows).cpu().numpy()
        )
    return groups.measure(values, lambda rows: factor * STATISTICS[statistic](rows))


def quantize(values: Values, groups: Groups, scales: Floats, between: Floats, bits: int) -> bytes:
    """The packed codes of the levels nearest to each x / scale."""
    if isinstance(values, Tensor):
        each, edges = (torch.from_numpy(found).to(values.device) for found in (scales, between))
        return reference.quantize(values, groups, each, edges, bits).cpu().numpy().tobytes()
    if kernels.usable(len(values), bits):
        return kernels.quantize(values, scales, groups.size, between, bits)
    return pack_ratios(values, groups, scales, bits, lambda ratios: nearest(ratios, between))


def look_up(
    packet: Packet,
    bits: int,
    levels: Floats,
    scales: Sequence[float],
    groups: Groups,
    weight: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """The level of each code times its scale, then times `weight`: two roundings however it is done.

    With `out`, flat and contiguous and on any device, they are added to it instead.
    """
    check_packed(packet.code, bits, packet.numel)
    each = np.asarray(scales, np.float32)
    if out is not None and on_gpu(out):
        code = np.frombuffer(packet.code, np.uint8).copy()
        packed, q, s = (torch.from_numpy(found).to(out.device) for found in (code, levels, each))
        return out.add_(reference.expand(packed, bits, q, s, groups, packet.numel, weight))
    if kernels.usable(packet.numel, bits) and (out is None or out.device.type == "cpu"):
        into = torch.empty(packet.numel) if out is None else out
        kernels.expand(
            packet.code, bits, levels, each, groups.size, weight, into.numpy(), add=out is not None
        )
        return into
    codes = unpack(packet.code, bits, packet.numel).numpy()
    if groups.count == 1:  # scale and weight go into the table
        found = (levels * each[0] * np.float32(weight)).take(codes, mode="clip")
    else:
        found = levels.take(codes, mode="clip")
        found *= groups.spread(each, packet.numel)
        found *= np.float32(weight)
    decoded = torch.from_numpy(found)
    return decoded if out is None else out.add_(decoded.to(out.device))


def pack_ratios(
    values: Floats, groups: Groups, scales: Floats, bits: int, choose: Callable[[Floats], Codes]
) -> bytes:
    """The packed codes that `choose` finds for each x / scale."""
    spread = groups.spread(scales, len(values))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = choose(values / spread)
    if not scales.all():
        codes[np.broadcast_to(spread == 0, codes.shape)] = 0  # a group of zeros: any level times 0
    return pack(torch.from_numpy(codes), bits)


def nearest(ratios: Floats | Measured, between: Floats | Measured) -> Codes:
    """The code of the nearest level; a value on an edge goes down, as in the published DANUQ code."""
    codes = np.empty(len(ratios), np.uint8)
    count = count_all if len(between) < 32 else count_halving
    for start in range(0, len(ratios), CHUNK):
        codes[start : start + CHUNK] = count(ratios[start : start + CHUNK], between)
    return codes


def count_all(ratios: Floats | Measured, edges: Floats | Measured) -> Codes:
    """How many edges are below each ratio: without a branch, several times faster than numpy's and torch's search."""
    found = np.zeros(len(ratios), np.uint8)
    for edge in edges:
        found += (ratios > edge).view(np.uint8)
    return found


def count_halving(ratios: Floats | Measured, edges: Floats | Measured) -> NDArray[np.intp]:
    """The same by halving the interval, for many ascending edges."""
    step = 2 ** (len(edges).bit_length() - 1)
    padded = np.pad(edges, (0, 2 * step - 1 - len(edges)), constant_values=np.inf)
    found = np.zeros(len(ratios), np.intp)
    while step:
        found += step * (ratios > padded.take(found + (step - 1)))
        step //= 2
    return found


def uniform_draws(count: int, seed: int) -> Floats:
    """`count` numbers from [0, 1)."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)).numpy()


@functools.cache
def tables(levels: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Levels and edges in float32; the edges are rounded once, from exact midpoints."""
    return np.array(levels, np.float32), np.array(edges(levels), np.float32)
