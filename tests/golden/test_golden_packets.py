"""Committed packets: whoever changes a codec's bytes sees it in this diff."""

import json
import math
from pathlib import Path

import pytest
import torch

from fedwsq.codecs import CODECS, Packet
from fedwsq.codecs.base import rows_of

GOLDEN = json.loads((Path(__file__).parent / "packets.json").read_text())


def named(entry):
    settings = [f"{key}={value}" for key, value in entry.get("settings", {}).items()]
    return "-".join([entry["codec"], str(entry["rate"]), *settings])


@pytest.mark.parametrize("entry", GOLDEN["packets"], ids=named)
def test_packet_is_the_committed_one(entry):
    codec = CODECS[entry["codec"]](**entry.get("settings", {}))
    shared = torch.tensor(entry["shared"])
    shape = tuple(entry.get("shape", [len(GOLDEN["input"])]))
    x = torch.tensor(GOLDEN["input"])[: math.prod(shape)].view(shape)
    expected = Packet(
        bytes.fromhex(entry["code"]),
        tuple(entry["side"]),
        entry["rate"],
        x.numel(),
        entry["own_scale"],
        rows=rows_of(shape),
    )
    assert codec.encode(x, shared, entry["rate"], seed=entry["seed"]) == expected
    codec.check(expected)
    decoded = codec.decode(expected, shared, seed=entry["seed"])
    assert torch.equal(decoded, torch.tensor(entry["decoded"]))


def test_every_codec_has_a_committed_packet():
    assert {entry["codec"] for entry in GOLDEN["packets"]} == set(CODECS)
