"""A client's update, clipped and noised: all that it sends afterwards is made of this alone."""

import math
import os

import numpy as np
import torch
from torch import Tensor

from fedwsq.core.types import Update, Vectors
from fedwsq.plan import Privacy
from fedwsq.wire.line import energy_of

BITS = 52  # of a uniform number; so many and a half are exact in float64, and never 0 or 1
JUST_WITHIN = 1 - 1e-6  # float32 rounds: what was scaled to the bound must not end up above it


def privatize(update: Update, privacy: Privacy) -> Update:
    """Clip all vectors together, add noise; weight and metrics say the same for every client.

    An update that is not finite counts as nothing at all: that it was so stays with the client.
    """
    energy = sum(energy_of(x) for params in update.vectors.values() for x in params.values())
    norm = math.sqrt(energy) if math.isfinite(energy) else math.inf
    share = 1.0
    if norm > privacy.clip:
        share = privacy.clip / norm * JUST_WITHIN
    vectors: Vectors = {}
    for vector, params in update.vectors.items():
        vectors[vector] = {name: _noised(x, share, privacy) for name, x in params.items()}
    return Update(vectors, weight=1.0)


def _noised(x: Tensor, share: float, privacy: Privacy) -> Tensor:
    # At a share of 0, a NaN would stay one.
    kept = x.detach().float() * share if share else torch.zeros_like(x, dtype=torch.float32)
    noise = normal(x.numel()) * (privacy.noise * privacy.clip)
    return kept + noise.float().view(x.shape).to(x.device)


def normal(count: int) -> Tensor:
    """Draws from N(0, 1) that nobody can repeat: the operating system's bytes, by inversion."""
    words = np.frombuffer(os.urandom(8 * count), "<u8")
    uniform = ((words >> np.uint64(64 - BITS)) + 0.5) * 2.0**-BITS
    drawn: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return drawn
