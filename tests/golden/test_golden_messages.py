"""Committed messages: whoever changes the wire format sees it in this diff, and in the document."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import fedwsq
from fedwsq.codecs import Danuq, Fixed
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key
from fedwsq.evaluation import Scores
from fedwsq.federation.evaluator import write_scores
from fedwsq.federation.phases import vote_packet
from fedwsq.secure.ring import Part
from fedwsq.wire import Kind, Line, Link, Message, Schema, decode, encode
from fedwsq.wire.message import EVERYONE
from fedwsq.wire.parse import kind_of

GOLDEN = json.loads((Path(__file__).parent / "messages.json").read_text())
DOCUMENT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
SCHEMA = Schema({"stem.weight": (1, 1, 2), "conv.weight": (1, 1, 5), "bias": (1,)})
RUN = bytes(range(16))
NONCE = bytes(range(0xF0, 0x100))
# A few of the settings that two ends would share: a whole list is as long as a plan.
SETTINGS = {
    "wire": 2,
    "seed": 7,
    "algorithm.name": "fedavg",
    "training.lr": 0.1,
    "uplink.codec.name": "danuq",
    "uplink.bits.bits": 4,
    "uplink.error_feedback": False,
    "data.shape": [1, 8, 8],
    "model.tensors": SCHEMA.digest.hex(),
}
AGREEMENT = hashlib.blake2b(json.dumps(SETTINGS, sort_keys=True).encode(), digest_size=16).digest()
UPLINK = Line(Link(Danuq(scale_init=1e-3), Fixed(4)), SCHEMA)
DOWNLINK = Line(Link(), SCHEMA)
KEY = Key(7, 3, 12)
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
    key = KEY._replace(client=EVERYONE)
    packets = DOWNLINK.send({"params": PARAMS}, {}, key, (32.0,)).packets
    states = UPLINK.init(("delta",))
    return Message(Kind.BROADCAST, key, RUN, agreement=AGREEMENT, states=states, packets=packets)


def order():
    return Message(Kind.ORDER, KEY, RUN, NONCE, AGREEMENT, accepted=2, rates=(4.0,))


def reply():
    sent = UPLINK.send({"delta": DELTA}, UPLINK.init(("delta",)), KEY, (4.0,))
    return Message(
        Kind.REPLY,
        KEY,
        RUN,
        NONCE,
        AGREEMENT,
        weight=40.0,
        error=sent.error,
        metrics={"loss": 1.5},
        packets=sent.packets,
    )


def forgot():
    return Message(Kind.FORGOT, KEY, RUN, NONCE, AGREEMENT)


# What belongs to no run has neither an id nor a nonce.


def evaluate():
    return Message(Kind.EVALUATE, KEY, bytes(16), agreement=AGREEMENT)


def score():
    """The batch that starts at example 200."""
    return Message(Kind.SCORE, KEY._replace(client=200), bytes(16), agreement=AGREEMENT)


def scores():
    found = Scores(40, 29.0, 31.25, torch.tensor([20, 9]), torch.tensor([22, 18]))
    text = write_scores(found)
    return Message(Kind.SCORES, KEY, bytes(16), agreement=AGREEMENT, text=text)


def hello():
    text = json.dumps(SETTINGS)
    return Message(Kind.HELLO, Key(7, 0, 12), bytes(16), agreement=AGREEMENT, text=text)


def welcome():
    about = {
        "examples": 40,
        "labels": [22, 18],
        "precision": "float32",
        "device": "cpu",
        "torch": "2.9.0",
        "processor": "x86_64",
    }
    text = json.dumps(about)
    return Message(Kind.WELCOME, Key(7, 0, 12), bytes(16), agreement=AGREEMENT, text=text)


def pack():
    return decode(fedwsq.pack(PARAMS, "ecq", seed=7), SCHEMA)


def phase():
    text = json.dumps({"phase": "votes", "voters": 5, "cohort": [1, 4, 12, 20, 33]})
    states = {"delta": {name: torch.tensor([0.5]) for name in SCHEMA.names}}
    return Message(Kind.PHASE, KEY, RUN, NONCE, AGREEMENT, accepted=2, states=states, text=text)


def said():
    """Integers of 3 bits, as a cohort of five has them."""
    packets = {}
    for name, size in SCHEMA.sizes.items():
        part = Part(size, 3)
        words = np.arange(size, dtype=part.dtype) % 8
        packets[name] = vote_packet(part, part.pack(words))._replace(rows=SCHEMA.rows[name])
    text = json.dumps({"phase": "votes", "ballot": "0102030405060708"})
    return Message(Kind.SAID, KEY, RUN, NONCE, AGREEMENT, packets={"delta": packets}, text=text)


MAKERS = [
    broadcast,
    order,
    reply,
    evaluate,
    score,
    scores,
    hello,
    welcome,
    forgot,
    pack,
    phase,
    said,
]


def committed(name):
    return bytes.fromhex("".join(GOLDEN[name]))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_message_is_the_committed_one(make):
    message = make()
    data = committed(make.__name__)
    assert encode(message, SCHEMA).hex() == data.hex()
    assert kind_of(data) is message.kind
    assert decode(data, SCHEMA, message.kind, message.run) == message


def test_every_kind_has_a_committed_message():
    assert {make.__name__ for make in MAKERS} == {kind.name.lower() for kind in Kind}
    assert GOLDEN.keys() == {make.__name__ for make in MAKERS} | {"order of version 1"}


def test_a_message_of_version_1_is_refused_as_such():
    """It is shorter than a header of version 2: the version is what matters, not the length."""
    data = committed("order of version 1")
    for use in (kind_of, lambda data: decode(data, SCHEMA), lambda data: decode(data, None)):
        with pytest.raises(MessageError, match=r"^unknown version 1: this build reads version 2$"):
            use(data)


def test_the_document_shows_the_committed_reply():
    """Its dump has lines of `offset  bytes  meaning`."""
    rows = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} ?)+)  ", DOCUMENT, re.MULTILINE)
    data = b""
    for offset, row in rows:
        assert int(offset) == len(data)
        data += bytes.fromhex(row)
    assert data.hex() == "".join(GOLDEN["reply"])


@pytest.mark.parametrize("make", [hello, welcome, scores, pack], ids=lambda make: make.__name__)
def test_the_document_shows_the_committed_text(make):
    """Wrapped between its parts where it is long."""
    assert make().text in re.sub(r"\n +", " ", DOCUMENT)
