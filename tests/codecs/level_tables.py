"""Shared by the tests of the codecs' inner loops."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from fedwsq.codecs import CODECS, Fp, kernels
from fedwsq.codecs.grid import Grid
from fedwsq.codecs.levels import LEVEL_KINDS, levels, widths

# Every set of levels for N(0, 1): its bits and its kind.
EVERY = [(bits, kind) for kind in LEVEL_KINDS for bits in widths(kind).listed]


def level_tables(at: Collection[int]) -> dict[str, tuple[int, tuple[float, ...]]]:
    """Every table of levels in the package at these widths, by name: bits and levels."""
    found = {f"danuq-{kind}-{bits}": (bits, levels(bits, kind)) for bits, kind in EVERY}
    found["fp-bitsandbytes-4"] = (4, Fp(table="bitsandbytes").levels(4))
    for name, codec in CODECS.items():
        if issubclass(codec, Grid):
            for bits in codec.rates.listed:
                found[f"{name}-{bits}"] = (bits, codec().levels(bits))
    return {name: entry for name, entry in found.items() if entry[0] in at}


@pytest.fixture
def at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels work on vectors of any length."""
    monkeypatch.setattr(kernels, "WORTH_LOADING", 0)


def in_numpy(work: Callable[[], Any]) -> Any:
    """What the work gives without a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "usable", lambda numel, bits=8: False)
        return work()
