"""Clipping: of all gradients together by their norm, or of each unit's (Brock et al., 2021, arXiv:2102.06171)."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip_norm(params: Iterable[Tensor], limit: float) -> None:
    """Scale all gradients together to a norm of at most `limit`, in place.

    `nn.utils.clip_grad_norm_`, bit for bit, but that one also writes gradients that it leaves as they are.
    """
    gradients = [p.grad for p in params if p.grad is not None]
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    if not norms:
        return
    factor = limit / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)
    if (
        factor.device.type == "cpu" and factor >= 1
    ):  # not when NaN; and a GPU is not to be waited for
        return
    for gradient in gradients:
        gradient.mul_(factor.clamp(max=1.0))


def adaptive_clip(gradient: Tensor, weight: Tensor, limit: float, eps: float = 1e-3) -> Tensor:
    """`gradient` with each output unit (dim 0) no longer than `limit` times that of `weight`, or times `eps` if longer.

    A bias, a gain or a scalar is one unit as a whole. Units within the bound keep their exact values.
    """
    bound = limit * unit_norm(weight).clamp(min=eps)
    return gradient * (bound / unit_norm(gradient)).clamp(
        max=1.0
    )  # a zero gradient: bound / 0 = inf, so 1


def unit_norm(x: Tensor) -> Tensor:
    """The L2 norm of each output unit, shaped to broadcast against `x`."""
    dims = tuple(range(1, x.ndim)) if x.ndim > 1 else None
    norm: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=True)
    return norm
