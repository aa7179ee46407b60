"""Clipping: of all gradients together by their norm, or of each unit's by its weight's."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip_norm(params: Iterable[Tensor], limit: float) -> None:
    """Scale all gradients together to a norm of at most `limit`, in place.

    `nn.utils.clip_grad_norm_`, bit for bit, but that one also writes gradients that it leaves
    as they are.
    """
    gradients = [p.grad for p in params if p.grad is not None]
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    if not norms:
        return
    factor = limit / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)
    # A GPU is not waited for; and a norm that is not a number is not hidden.
    if factor.device.type == "cpu" and factor >= 1:
        return
    for gradient in gradients:
        gradient.mul_(factor.clamp(max=1.0))


def clip_units(params: Iterable[Tensor], limit: float) -> None:
    """Replace every gradient by its `adaptive_clip`."""
    for p in params:
        if p.grad is not None:
            p.grad = adaptive_clip(p.grad, p.detach(), limit)


def adaptive_clip(gradient: Tensor, weight: Tensor, limit: float, eps: float = 1e-3) -> Tensor:
    """`gradient` with no output unit (dim 0) longer than `limit` times the same unit of `weight`.

    A unit of `weight` counts as at least `eps` long. A bias, a gain or a scalar is one unit as a
    whole. Units within the bound keep their exact values (Brock et al., 2021, arXiv:2102.06171).
    """
    bound = limit * unit_norm(weight).clamp(min=eps)
    factor = bound / unit_norm(gradient)  # infinite for a zero gradient, and then 1
    return gradient * factor.clamp(max=1.0)


def unit_norm(x: Tensor) -> Tensor:
    """The L2 norm of each output unit, shaped to broadcast against `x`."""
    dims = tuple(range(1, x.ndim)) or None
    norm: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=True)
    return norm
