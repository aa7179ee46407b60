"""Committed ecq packets: every platform and coder version must read them, and write them."""

import json
from pathlib import Path

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
