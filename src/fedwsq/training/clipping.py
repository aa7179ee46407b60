"""Adaptive gradient clipping (Brock et al., 2021, arXiv:2102.06171), for networks without norms."""

import torch
from torch import Tensor


def adaptive_clip(gradient: Tensor, weight: Tensor, limit: float, eps: float = 1e-3) -> Tensor:
    """`gradient` with each output unit (dim 0) no longer than `limit` times that of `weight`, or times `eps` if longer.

    A bias, a gain or a scalar is one unit as a whole. Units within the bound keep their exact values.
    """
    bound = limit * unit_norm(weight).clamp(min=eps)
    return gradient * (bound / unit_norm(gradient)).clamp(max=1.0)  # a zero gradient: bound / 0 = inf, so 1


def unit_norm(x: Tensor) -> Tensor:
    """The L2 norm of each output unit, shaped to broadcast against `x`."""
    dims = tuple(range(1, x.ndim)) if x.ndim > 1 else None
    norm: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=True)
    return norm
