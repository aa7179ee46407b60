"""What the codecs with levels do, in plain torch: for tensors on a GPU, and to read first.

Codes and values have the same bits on every device and in every implementation: each is made of
single float32 operations, in one order. Sums are not: a device adds in an order of its own, so that
a std, a mean or a norm may differ in the last bits of float64, and once rounded to float32 by one
unit in the last place.

A scale stands for every `size` elements in a row, as in `kernels.Scales`; here it is a tensor.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedwsq.codecs.groups import Groups, Survey


def quantize(x: Tensor, scales: Tensor, size: int, edges: Tensor, bits: int) -> Tensor:
    """The packed number of edges below each x / scale, `x` flat and finite; 0 if the scale is 0."""
    # A scale for each element even where one would do: CUDA multiplies by the reciprocal of a
    # single number, which rounds twice.
    scale = spread(scales, size, len(x))
    ratios = torch.where(scale > 0, x / scale, -math.inf)
    codes = torch.bucketize(ratios, edges, out_int32=True)  # on an edge: the cell below
    return pack(codes.to(torch.uint8), bits)


def expand(codes: Tensor, levels: Tensor, scales: Tensor, size: int, weight: float) -> Tensor:
    """The level of each code times its scale, then times `weight`: two roundings."""
    known = codes.clamp(max=len(levels) - 1)  # a code without a level has the last one's
    return levels[known.int()] * spread(scales, size, len(codes)) * weight


def spread(scales: Tensor, size: int, numel: int) -> Tensor:
    """The scale of every element."""
    return scales.repeat_interleave(size)[:numel]


def pack(codes: Tensor, bits: int) -> Tensor:
    """The bytes of `codes`, uint8: the layout of `packing`, at every width."""
    planes = codes[:, None] >> _ascending(bits, codes) & 1  # [codes, bits], lowest first
    missing = -planes.numel() % 8
    stream = pad(planes.reshape(-1), (0, missing)).view(-1, 8)
    return (stream << _ascending(8, codes)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes in the bytes, uint8."""
    stream = packed[:, None] >> _ascending(8, packed) & 1
    planes = stream.reshape(-1)[: count * bits].view(count, bits)
    return (planes << _ascending(bits, packed)).sum(1, dtype=torch.uint8)


def _ascending(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=torch.uint8, device=like.device)


def survey(x: Tensor, groups: Groups) -> Survey:
    """max|x|, NaN if any is, and the unbiased std of every group of a flat `x`, on the CPU."""
    found = [torch.stack([largest(rows), std(rows)]) for rows in groups.rows(x)]
    # Both in one piece: each trip from a GPU costs more than what it carries.
    return Survey(*torch.cat(found, 1).cpu().numpy())


def largest(rows: Tensor) -> Tensor:
    """max|x| of each row."""
    with_zero = pad(rows, (0, 1))  # for rows of nothing
    return with_zero.abs().amax(1).double()


def std(rows: Tensor) -> Tensor:
    """The unbiased std of each row, or |x| of a single element."""
    if rows.shape[1] < 2:
        return largest(rows)
    # From the first element on, so that equal ones have a std of exactly 0 however they are added.
    first = rows[:, :1].double()
    return (rows.double() - first).std(1)


def self_scale(rows: Tensor) -> Tensor:
    """The std of each row, or |x| where all its elements are equal."""
    found = std(rows)
    return torch.where(found > 0, found, largest(rows))


def mean_magnitude(rows: Tensor) -> Tensor:
    """mean|x| of each row."""
    total = rows.abs().sum(1, dtype=torch.float64)
    return total / max(rows.shape[1], 1)


def norm(rows: Tensor) -> Tensor:
    """The Euclidean norm of each row."""
    return rows.double().square().sum(1).sqrt()


Statistic = Callable[[Tensor], Tensor]  # of each row, in float64
STATISTICS: dict[str, Statistic] = {
    "absmax": largest,
    "mean": mean_magnitude,
    "norm": norm,
    "std": self_scale,
}
