"""A message of every kind, and one of them built by hand as `docs/wire-format.md` describes it."""

import hashlib
import struct
from dataclasses import replace

import torch

from fedwsq.codecs import Packet
from fedwsq.core.types import Key
from fedwsq.wire import Kind, Message, Schema, encode
from fedwsq.wire.message import EVERYONE

SCHEMA = Schema({"stem": (1, 1, 2), "conv": (1, 1, 5), "bias": ()})
RUN = bytes(range(16))
NONCE = bytes(range(16, 32))
AGREEMENT = bytes(range(32, 48))
KEY = Key(7, 3, 12)
CODE = b"\x1c\xf8\x04"
TEXT = '["grüße"]'  # 11 bytes
PACKETS = {
    "stem": Packet(bytes(8), (), 32.0, 2),
    "conv": Packet(CODE, (2.0,), 4.0, 5, own_scale=True, codec=1),
    "bias": Packet(bytes(4), (), 32.0, 1),
}

# Every section is there, though no kind uses all of them.
MESSAGE = Message(
    Kind.REPLY,
    KEY,
    RUN,
    NONCE,
    AGREEMENT,
    accepted=2,
    weight=40.0,
    error=0.25,
    rates=(4.0,),
    metrics={"loss": 1.5},
    states={"delta": {"conv": torch.tensor([0.5])}},
    packets={"delta": PACKETS},
    text=TEXT,
)
DATA = encode(MESSAGE, SCHEMA)

_ORDER = Message(Kind.ORDER, KEY, RUN, NONCE, AGREEMENT)
# One of each kind, with what that kind uses.
EXAMPLES = {
    Kind.BROADCAST: Message(
        Kind.BROADCAST,
        Key(7, 3, EVERYONE),
        RUN,
        agreement=AGREEMENT,
        states=MESSAGE.states,
        packets={"params": PACKETS},
    ),
    Kind.ORDER: replace(_ORDER, accepted=2, rates=(4.0,)),
    Kind.REPLY: replace(MESSAGE, accepted=0, rates=(), states={}, text=""),
    Kind.EVALUATE: replace(_ORDER, kind=Kind.EVALUATE),
    Kind.SCORE: replace(_ORDER, kind=Kind.SCORE),
    Kind.SCORES: replace(_ORDER, kind=Kind.SCORES, text="[3, 2.0, 1.5, [2, 0], [2, 1]]"),
    Kind.HELLO: replace(_ORDER, kind=Kind.HELLO, text='{"wire": 2, "seed": 7}'),
    Kind.WELCOME: replace(_ORDER, kind=Kind.WELCOME, text='{"examples": 40, "labels": [39, 1]}'),
    Kind.FORGOT: replace(_ORDER, kind=Kind.FORGOT),
    Kind.PACK: replace(_ORDER, kind=Kind.PACK, text='{"bits": 4, "tensors": []}'),
    Kind.PHASE: replace(_ORDER, kind=Kind.PHASE, text='{"phase": "votes", "voters": 5}'),
    Kind.SAID: replace(_ORDER, kind=Kind.SAID, text='{"phase": "votes", "ballot": "00"}'),
}


def reseal(data, *, length=True):
    """The same message with a checksum, and if asked a length, that fit what is in it now."""
    if length:
        data = data[:8] + struct.pack("<Q", len(data)) + data[16:]
    return data[:-16] + hashlib.blake2b(data[:-16], digest_size=16).digest()


class Layout:
    """Writes fields one after the other; `damage` replaces some of them, by name."""

    def __init__(self, damage):
        self.damage = damage
        self.data = b""

    def number(self, layout, name, value):
        self.data += struct.pack("<" + layout, self.damage.get(name, value))

    def raw(self, name, value):
        self.data += self.damage.get(name, value)

    def name(self, field, text):
        self.number("B", f"{field} length", len(text))
        self.raw(field, text)

    def entry(self, tensor, packet):
        self.number("B", f"{tensor} codec", packet.codec)
        self.number("B", f"{tensor} flags", 1 if packet.own_scale else 0)
        self.number("f", f"{tensor} rate", packet.rate)
        self.number("I", f"{tensor} sides", len(packet.side))
        self.number("Q", f"{tensor} code length", len(packet.code))
        for side in packet.side:
            self.number("f", f"{tensor} side", side)
        self.raw(f"{tensor} code", packet.code)


def build(**damage):
    """`MESSAGE`, written independently of `encode`; `damage` replaces fields by name."""
    body = Layout(damage)
    body.number("f", "rate", 4.0)
    body.name("metric", b"loss")
    body.number("d", "metric value", 1.5)
    body.name("state vector", b"delta")
    body.number("I", "state tensors", 1)
    body.number("I", "state index", 1)
    body.number("I", "state values", 1)
    body.number("f", "state value", 0.5)
    body.name("vector", b"delta")
    body.number("I", "tensors", 3)
    for tensor, packet in PACKETS.items():
        body.entry(tensor, packet)
    body.raw("text bytes", TEXT.encode())

    header = Layout(damage)
    header.raw("magic", b"FWSQ")
    header.number("H", "version", 2)
    header.number("B", "kind", 3)
    header.number("B", "reserved", 0)
    header.number("Q", "length", 148 + len(body.data) + 16)
    header.raw("schema", SCHEMA.digest)
    header.raw("agreement", AGREEMENT)
    header.raw("run", RUN)
    header.raw("nonce", NONCE)
    header.number("Q", "seed", 7)
    header.number("Q", "round", 3)
    header.number("Q", "client", 12)
    header.number("Q", "accepted", 2)
    header.number("d", "weight", 40.0)
    header.number("d", "error", 0.25)
    for section in ("rates", "metrics", "states", "vectors"):
        header.number("I", section, 1)
    header.number("I", "text", len(TEXT.encode()))
    return reseal(header.data + body.data + bytes(16), length=False)


def same(a, b):
    """Equal messages; codec states compared as tensors."""
    assert replace(a, states={}) == replace(b, states={})
    assert a.states.keys() == b.states.keys()
    for vector, tensors in a.states.items():
        assert tensors.keys() == b.states[vector].keys()
        assert all(torch.equal(state, b.states[vector][name]) for name, state in tensors.items())
