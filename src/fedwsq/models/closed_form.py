"""Weight standardization of one tensor, with its gradient in closed form.

For each output channel, a row of d numbers w whose gradient g comes from above:

    v = w - mean(w)      s = sqrt(v . v / (d - 1))      y = rho v / (s + eps)

A change of v changes s by ds = v . dv / ((d - 1) s) and y by
rho / (s + eps) (dv - v ds / (s + eps)). So the gradient to v is

    rho / (s + eps) (g - v (v . g) / ((d - 1) s (s + eps)))

and that to w is the same less its mean, since dv = dw - mean(dw). The mean of v is 0 already:

    dw = rho / (s + eps) (g - mean(g) - v (v . g) / ((d - 1) s (s + eps)))

Written as plain tensor operations for autograd, all this takes 60 % of a ResNet-18 step on a CPU.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**17  # floats in a temporary on a CPU: with what goes in and out, it fits into a cache


def standardized(weight: Tensor, rho: float = 1e-3, eps: float = 1e-5) -> Tensor:
    """`weight` standardized per output channel (dim 0).

    Under autocast the result has the autocast dtype, for the convolution that takes it.
    """
    device = weight.device.type
    dtype = weight.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    result: Tensor = Standardize.apply(weight, rho, eps, dtype)  # type: ignore[no-untyped-call]
    return result


class Standardize(torch.autograd.Function):
    """The formula; keeps the weight, which is alive anyway, and two numbers a channel."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rho: float, eps: float, dtype: torch.dtype) -> Tensor:
        """rho * v / (std + eps) in `dtype`, in the memory format of `weight`."""
        ctx.rho = rho
        ctx.eps = eps
        ctx.channels_last = _is_channels_last(weight)
        w = _rows(weight, ctx.channels_last)
        mean = w.new_empty((len(w), 1), dtype=_wide_dtype(w))
        std = torch.empty_like(mean)
        out = torch.empty_like(w, dtype=dtype)

        for rows, (spare,) in _blocks(w, mean.dtype, 1):
            # Computed where it shall stay, unless that is too narrow for what comes between.
            v = out[rows] if dtype == mean.dtype else spare
            torch.sub(w[rows], _mean(w[rows], out=mean[rows]), out=v)
            below = _std(v, out=std[rows]) + eps
            v.mul_(rho / below)
            if v is spare:
                out[rows] = v

        ctx.save_for_backward(weight, mean, std)
        return _unrows(out, weight, ctx.channels_last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient to the raw weight; differentiable again when asked to be (create_graph)."""
        weight, mean, std = ctx.saved_tensors
        w = _rows(weight, ctx.channels_last)
        g = _rows(gradients[0], ctx.channels_last)
        if torch.is_grad_enabled():
            dw = _differentiable_gradient(w, g, ctx.rho, ctx.eps)
        else:
            dw = torch.empty_like(w, dtype=mean.dtype)
            spread = _spread(std)
            below = std + ctx.eps
            gain = ctx.rho / below
            # The order of a sum depends on how the numbers lie in memory: always in a row.
            as_is = g.dtype == mean.dtype and g.is_contiguous()
            for rows, (spare, product) in _blocks(w, mean.dtype, 2):
                wide = g[rows] if as_is else spare.copy_(g[rows])
                v = torch.sub(w[rows], mean[rows], out=dw[rows])
                dot = torch.mul(v, wide, out=product).sum(1, keepdim=True)
                # The last line of the derivation from the inside out; 1 - d carries its minus.
                pull = dot.div_(spread[rows]).div_(below[rows]).div_(1 - v.shape[1])
                v.mul_(pull).add_(wide)
                v.sub_(_mean(wide)).mul_(gain[rows])
        dw = _unrows(dw.to(weight.dtype), weight, ctx.channels_last)
        return dw, None, None, None


def _differentiable_gradient(w: Tensor, g: Tensor, rho: float, eps: float) -> Tensor:
    """The same as in `backward`, operation for operation, for autograd to look into.

    What was saved is constant to autograd, so statistics are taken from the weight once more.
    """
    v = _wide(w) - _mean(w)
    g = _wide(g)
    std = _std(v)
    dot = (v * g).sum(1, keepdim=True)
    pull = dot / _spread(std) / (std + eps) / (1 - v.shape[1])
    return (v * pull + g - _mean(g)) * (rho / (std + eps))


def _mean(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.mean(x, 1, keepdim=True, dtype=_wide_dtype(x), out=out)


def _std(v: Tensor, out: Tensor | None = None) -> Tensor:
    # Unbiased here and eps outside the root above: the published code, not the WS paper.
    # From the norm of the deviations, as `torch.std` is several times slower on a CPU.
    norm: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return torch.div(norm, math.sqrt(v.shape[1] - 1), out=out)


def _spread(std: Tensor) -> Tensor:
    """`std` to divide by: a constant row's v . g is 0, and so shall the quotient be."""
    return std.masked_fill(std == 0, 1.0)


def _wide(x: Tensor) -> Tensor:
    return x.to(_wide_dtype(x))


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _blocks(
    w: Tensor, dtype: torch.dtype, temporaries: int
) -> Iterator[tuple[slice, list[Tensor]]]:
    """Slices of rows, each with memory for temporaries of that shape.

    On a CPU half a megabyte at a time and always the same memory, so that it stays in the cache.
    """
    rows, fan_in = w.shape
    if w.device.type == "cpu":
        rows = min(rows, max(1, BLOCK // fan_in))
    shape = (rows, fan_in)
    spare = [torch.empty(shape, dtype=dtype, device=w.device) for _ in range(temporaries)]
    for start in range(0, len(w), rows or 1):
        height = min(rows, len(w) - start)
        block = slice(start, start + height)
        yield block, [x[:height] for x in spare]


# A channels-last weight [out, in, height, width] lies in memory as [out, height, width, in]. Row
# statistics do not depend on the order within a row, so rows follow the memory: they are views, and
# the result has the layout that the convolution wants. The order of the dimensions would cost a
# copy both ways.


def _is_channels_last(weight: Tensor) -> bool:
    if weight.ndim < 4 or weight.is_contiguous():
        return False
    return weight.movedim(1, -1).is_contiguous()


def _rows(x: Tensor, channels_last: bool) -> Tensor:  # [out, ...] -> [out, fan_in]
    if channels_last:
        x = x.movedim(1, -1)
    return x.flatten(1)


def _unrows(rows: Tensor, like: Tensor, channels_last: bool) -> Tensor:
    if channels_last:
        return rows.view(like.movedim(1, -1).shape).movedim(-1, 1)
    return rows.view(like.shape)
