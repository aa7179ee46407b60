"""Committed packets: whoever changes a codec's bytes sees it in this diff."""

import json
from pathlib import Path

import pytest
import torch

from fedwsq.codecs import CODECS, Packet

GOLDEN = json.loads((Path(__file__).parent / "packets.json").read_text())


@pytest.mark.parametrize("entry", GOLDEN["packets"], ids=lambda entry: f"{entry['codec']}-{entry['rate']}")
def test_packet_is_the_committed_one(entry):
    codec, shared = CODECS[entry["codec"]](), torch.tensor(entry["shared"])
    x = torch.tensor(GOLDEN["input"])
    expected = Packet(bytes.fromhex(entry["code"]), tuple(entry["side"]), entry["rate"], len(x), entry["own_scale"])
    assert codec.encode(x, shared, entry["rate"], seed=entry["seed"]) == expected
    decoded = codec.decode(expected, shared, seed=entry["seed"])
    assert torch.equal(decoded, torch.tensor(entry["decoded"]))


def test_every_codec_has_a_committed_packet():
    assert {entry["codec"] for entry in GOLDEN["packets"]} == set(CODECS)
