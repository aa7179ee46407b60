"""Levels to packed codes and back, by whoever fits: the seam between codecs and inner loops.

A tensor on a GPU goes to `reference`; an array goes to `kernels` or, where those are not worth
loading, to the numpy in this file. All find the same bits.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs import kernels, reference
from fedwsq.codecs.base import Extent, Values, on_gpu
from fedwsq.codecs.groups import Groups, Survey, largest, mean_magnitude, norm, self_scale
from fedwsq.codecs.kernels import Coded, Doubles, Floats, Rounding, Scales
from fedwsq.codecs.levels import edges
from fedwsq.codecs.packing import Codes, check_packed, count_codes, pack, unpack

CHUNK = 2**14  # elements that stay in the cache while all edges pass
Statistic = Callable[[Floats], Doubles]
STATISTICS: dict[str, Statistic] = {
    "absmax": largest,
    "mean": mean_magnitude,
    "norm": norm,
    "std": self_scale,
}


class Table(NamedTuple):
    """A set of levels as the loops take it: in float32."""

    levels: Floats
    edges: Floats  # where the nearest level changes


@functools.cache
def tables(levels: tuple[float, ...]) -> Table:
    """Levels and edges; the edges are rounded once, from exact midpoints."""
    return Table(np.array(levels, np.float32), np.array(edges(levels), np.float32))


def survey(values: Values, groups: Groups) -> Survey:
    """Largest and std of every group."""
    if isinstance(values, Tensor):
        return reference.survey(values, groups)
    return groups.survey(values)


def measure(values: Values, groups: Groups, statistic: str, factor: float = 1.0) -> Floats:
    """The scale of every group: the statistic of that name, times `factor`."""
    if isinstance(values, Tensor):
        on_device = reference.STATISTICS[statistic]
        return groups.measure(values, lambda rows: factor * on_device(rows).cpu().numpy())
    of_rows = STATISTICS[statistic]
    return groups.measure(values, lambda rows: factor * of_rows(rows))


def quantize(values: Values, scales: Scales, edges: Floats, bits: int) -> bytes:
    """The packed codes of the levels nearest to each x / scale."""
    if isinstance(values, Tensor):
        each = torch.from_numpy(scales.each).to(values.device)
        between = torch.from_numpy(edges).to(values.device)
        packed = reference.quantize(values, each, scales.size, between, bits)
        return packed.cpu().numpy().tobytes()
    if kernels.usable(len(values), bits):  # not where codes cross bytes, nor for a short vector
        return kernels.quantize(values, scales, bits, Rounding(kernels.COUNT, edges))
    return pack_ratios(values, scales, bits, lambda ratios: nearest(ratios, edges))


def look_up(coded: Coded, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
    """The level of each code times its scale, then times `weight`: two roundings, whoever does it.

    With `out`, flat and contiguous and on any device, they are added to it instead.
    """
    check_packed(coded.code, coded.bits, coded.numel)
    if out is not None and on_gpu(out):
        return out.add_(expand_on(out.device, coded, weight))
    compiled = kernels.usable(coded.numel, coded.bits)
    if out is None:
        if not compiled:
            return torch.from_numpy(expand(coded, weight))
        out = torch.empty(coded.numel)
        kernels.expand(coded, weight, out.numpy(), add=False)
    elif compiled and out.device.type == "cpu":
        kernels.expand(coded, weight, out.numpy(), add=True)
    else:  # on mps it is decoded here and only added there
        out += torch.from_numpy(expand(coded, weight)).to(out.device)
    return out


def extent(coded: Coded) -> Extent:
    """How large the values of `look_up` are, of a single scale: from how often each code comes."""
    counts = count_codes(coded.code, coded.bits, coded.numel)
    levels = coded.levels.take(np.arange(len(counts)), mode="clip")
    values = np.abs(levels * coded.scales.each[0]).astype(np.float64)
    energy = float(np.add.reduce(counts * np.square(values)))
    return Extent(float(values.max(where=counts > 0, initial=0.0)), energy)


def expand_on(device: torch.device, coded: Coded, weight: float) -> Tensor:
    """The same by torch on a GPU: only packed codes and scales go there."""

    def there(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    packed = np.frombuffer(coded.code, np.uint8)
    codes = reference.unpack(there(packed.copy()), coded.bits, coded.numel)
    each, size = coded.scales
    return reference.expand(codes, there(coded.levels), there(each), size, weight)


def expand(coded: Coded, weight: float) -> Floats:
    """The level of each code times its scale, then times `weight`, in numpy."""
    code, bits, numel, levels, scales = coded
    codes = unpack(code, bits, numel)
    single = len(scales.each) == 1
    if single:  # scale and weight go into the table
        levels = levels * scales.each[0] * np.float32(weight)
    found = levels.take(codes, mode="clip")  # a code without a level has the last one's
    if not single:
        found *= scales.spread(numel)
        found *= np.float32(weight)
    return found


def pack_ratios(
    values: Floats, scales: Scales, bits: int, choose: Callable[[Floats], Codes]
) -> bytes:
    """The packed codes that `choose` finds for each x / scale."""
    spread = scales.spread(len(values))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = choose(values / spread)
    if not scales.each.all():  # a group of zeros: any level times 0
        codes[np.broadcast_to(spread == 0, codes.shape)] = 0
    return pack(codes, bits)


def nearest(ratios: Floats, edges: Floats) -> Codes:
    """The code of the nearest level; a value on an edge goes down, as in the published DANUQ."""
    codes = np.empty(len(ratios), np.uint8)
    count = count_all if len(edges) < 32 else count_halving
    for start in range(0, len(ratios), CHUNK):
        chunk = slice(start, start + CHUNK)
        codes[chunk] = count(ratios[chunk], edges)
    return codes


def count_all(ratios: Floats, edges: Floats) -> Codes:
    """How many edges are below each ratio.

    Without a branch, which is several times faster than numpy's and torch's search.
    """
    found = np.zeros(len(ratios), np.uint8)
    for edge in edges:
        found += (ratios > edge).view(np.uint8)
    return found


def count_halving(ratios: Floats, edges: Floats) -> NDArray[np.intp]:
    """The same by halving the interval, for many ascending edges."""
    step = 2 ** (len(edges).bit_length() - 1)
    # Up to one less than a power of two, so that every halving is even; nothing is above infinity.
    missing = 2 * step - 1 - len(edges)
    padded = np.pad(edges, (0, missing), constant_values=np.inf)
    found = np.zeros(len(ratios), np.intp)
    while step:
        found += step * (ratios > padded.take(found + (step - 1)))
        step //= 2
    return found


def uniform_draws(count: int, seed: int) -> Floats:
    """`count` numbers from [0, 1)."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)).numpy()
