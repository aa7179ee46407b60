"""Arithmetic over `Params`: both sides have the same names, and nothing is changed in place."""

import hashlib

import torch
from torch import Tensor

from fedwsq.core.types import Params, Shapes


def zeros_like(a: Params) -> Params:
    return {name: torch.zeros_like(x) for name, x in a.items()}


def add(a: Params, b: Params) -> Params:
    return {name: x + b[name] for name, x in a.items()}


def sub(a: Params, b: Params) -> Params:
    return {name: x - b[name] for name, x in a.items()}


def scale(factor: float, a: Params) -> Params:
    return {name: x * factor for name, x in a.items()}


def axpy(factor: float, a: Params, b: Params) -> Params:
    """factor * a + b, in one pass over the memory."""
    return {name: torch.add(b[name], x, alpha=factor) for name, x in a.items()}


def norm(a: Params) -> Tensor:
    """The L2 norm over all tensors together."""
    # A tensor, so that whoever wants a number decides when to wait for a GPU.
    squares = [x.square().sum() for x in a.values()]
    total: Tensor = torch.stack(squares).sum()
    return total.sqrt()


def to_device(a: Params, device: torch.device) -> Params:
    """The same tensors on `device`; those that are there already are not copied."""
    return {name: x.to(device) for name, x in a.items()}


def shapes(a: Params) -> Shapes:
    return {name: tuple(x.shape) for name, x in a.items()}


def fingerprint(a: Params) -> str:
    """A hash of names, shapes and exact bits: equal fingerprints mean equal weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, x in a.items():
        digest.update(f"{name}{tuple(x.shape)}".encode())
        # Contiguous: how a tensor lies in memory is not part of what it holds.
        exact = x.detach().cpu().contiguous()
        digest.update(exact.numpy().tobytes())
    return digest.hexdigest()
