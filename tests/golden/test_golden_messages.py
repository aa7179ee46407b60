"""Committed messages: whoever changes the wire format sees it in this diff, and in the dump of the document."""

import json
import re
from pathlib import Path

import pytest
import torch

from fedwsq.codecs import Danuq, Fixed
from fedwsq.core.types import Key
from fedwsq.wire import Kind, Link, Message, Schema, decode, encode
from fedwsq.wire.message import EVERYONE

GOLDEN = json.loads((Path(__file__).parent / "messages.json").read_text())
DOCUMENT = Path(__file__).parents[2] / "docs" / "wire-format.md"
SCHEMA = Schema({"stem.weight": (1, 1, 2), "conv.weight": (1, 1, 5), "bias": (1,)})
RUN, NONCE = bytes(range(16)), bytes(range(0xF0, 0x100))
UPLINK, DOWNLINK = Link(Danuq(), Fixed(4)), Link()
PARAMS = {
    "stem.weight": torch.tensor([[[1.0, -2.0]]]),
    "conv.weight": torch.tensor([[[0.5, -0.3, 0.2, 0.0, 0.1]]]),
    "bias": torch.tensor([0.25]),
}
DELTA = {
    "stem.weight": torch.tensor([[[0.001, -0.002]]]),
    "conv.weight": torch.tensor([[[0.0012, -0.0021, 0.0002, 0.0030, -0.0008]]]),
    "bias": torch.tensor([-0.001953125]),
}


def broadcast():
    key = Key(7, 3, EVERYONE)
    packets = DOWNLINK.send({"params": PARAMS}, {}, key, (32.0,), SCHEMA).packets
    return Message(
        Kind.BROADCAST, key, RUN, states=UPLINK.init(SCHEMA, ("delta",)), packets=packets
    )


def order():
    return Message(Kind.ORDER, Key(7, 3, 12), RUN, NONCE, accepted=2, rates=(4.0,))


def reply():
    key = Key(7, 3, 12)
    sent = UPLINK.send({"delta": DELTA}, UPLINK.init(SCHEMA, ("delta",)), key, (4.0,), SCHEMA)
    metrics = {"loss": 1.5}
    return Message(
        Kind.REPLY, key, RUN, NONCE, weight=40.0, error=sent.error, metrics=metrics, packets=sent.packets
    )  # fmt: skip


@pytest.mark.parametrize("make", [broadcast, order, reply], ids=lambda make: make.__name__)
def test_message_is_the_committed_one(make):
    message, committed = make(), bytes.fromhex("".join(GOLDEN[make.__name__]))
    assert encode(message, SCHEMA).hex() == committed.hex()
    assert decode(committed, SCHEMA, message.kind, RUN) == message


def test_the_document_shows_the_committed_reply():
    """Its dump has lines of `offset  bytes  meaning`."""
    rows = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} ?)+)  ", DOCUMENT.read_text(), re.MULTILINE)
    data = b""
    for offset, row in rows:
        assert int(offset) == len(data)
        data += bytes.fromhex(row)
    assert data.hex() == "".join(GOLDEN["reply"])
