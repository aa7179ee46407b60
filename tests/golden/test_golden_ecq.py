"""Committed ecq packets: every platform and coder version must read them, and write them."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwsq.codecs import Ecq, Packet

GOLDEN = json.loads((Path(__file__).parent / "ecq.json").read_text())
NONE = torch.empty(0)


@pytest.mark.parametrize("entry", GOLDEN["packets"], ids=lambda entry: f"{entry['rate']:g}")
def test_packet_is_the_committed_one(entry):
    x = torch.tensor(GOLDEN["input"])
    expected = Packet(
        bytes.fromhex(entry["code"]), (entry["step"],), entry["rate"], len(x), own_scale=True
    )
    Ecq().check(expected)
    steps = Ecq().decode(expected, NONE, seed=0).double() / entry["step"]
    # In 256ths of a step below 8 steps, in whole ones above: exact in float32 but for one rounding.
    assert torch.equal((steps * 256).round().long(), torch.tensor(entry["decoded_256ths"]))
    assert Ecq().encode(x, NONE, entry["rate"], seed=0) == expected


def heavy_tailed(numel):
    """Numbers that every platform finds the same: whole ones, and single divisions."""
    spread = np.arange(numel, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
    even = (spread.astype(np.float64) - 2**31) / 2**31  # from -1 on, below 1
    return torch.from_numpy((even / (1.0001 - np.abs(even))).astype(np.float32))


@pytest.mark.parametrize("entry", GOLDEN["large"], ids=lambda entry: f"{entry['rate']:g}")
def test_large_packet_is_the_committed_one(entry):
    """Several states, slices and rare symbols."""
    packet = Ecq().encode(heavy_tailed(GOLDEN["large_numel"]), NONE, entry["rate"], seed=0)
    assert packet.side == (entry["step"],)
    assert len(packet.code) == entry["bytes"]
    assert hashlib.sha256(packet.code).hexdigest() == entry["sha256"]
