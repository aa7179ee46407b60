"""Randomness is addressed, not consumed: a path gives the same numbers in any process and order."""

import hashlib

import numpy as np
import torch


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed that depends on `seed` and every element of `path`.

    `derive(0, "batches", round, client)` is that of one client's batches in one round.
    """
    digest = hashlib.blake2b(digest_size=8, person=b"fedwsq.seed")
    for part in (seed, *path):
        # Tagged and length-prefixed, so that ("ab", "c"), ("a", "bc") and (1,), ("1",) all differ.
        tag = "s" if isinstance(part, str) else "i"
        text = str(part).encode()
        digest.update(f"{tag}{len(text)}:".encode() + text)

    # 63 bits: a signed 64-bit integer holds it wherever it goes.
    return int.from_bytes(digest.digest(), "little") >> 1


def torch_rng(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator at the derived seed."""
    return torch.Generator().manual_seed(derive(seed, *path))


def numpy_rng(seed: int, *path: str | int) -> np.random.Generator:
    """A numpy generator at the derived seed."""
    return np.random.Generator(np.random.PCG64(derive(seed, *path)))
