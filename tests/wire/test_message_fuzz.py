"""Messages and bytes at random: every message survives its round trip, all else is refused."""

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from message_layout import DATA, EXAMPLES, SCHEMA, reseal, same

from fedwsq.codecs import Float32, Packet
from fedwsq.codecs.base import rows_of
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key
from fedwsq.wire import Kind, Message, Schema, decode, encode
from fedwsq.wire.message import CHECKSUM_BYTES, HEADER_BYTES, float32_bytes
from fedwsq.wire.parse import kind_of

COUNTS_AT = HEADER_BYTES - 5 * 4  # of rates, metrics, states, vectors and text
EVERY = [DATA, *(encode(message, SCHEMA) for message in EXAMPLES.values())]

finite = st.floats(0, 2.0**66, width=32)  # the limit is 1e20
rates = st.floats(2.0**-10, 64, width=32)
names = st.text(min_size=1, max_size=16).filter(lambda text: len(text.encode()) <= 64)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
words = st.integers(0, 2**64 - 1)
digests = st.binary(min_size=16, max_size=16)


@st.composite
def packets(draw, shape):
    size = math.prod(shape)
    return Packet(
        code=draw(st.binary(max_size=min(8 * size + 64, 80))),
        side=tuple(draw(st.lists(finite, max_size=min(size + 16, 20)))),
        rate=draw(rates),
        numel=size,
        own_scale=draw(st.booleans()),
        codec=draw(st.integers(0, 255)),
        rows=rows_of(shape),
    )


@st.composite
def codec_states(draw, schema):
    """State of some of the tensors."""
    chosen = draw(st.sets(st.sampled_from(schema.names))) if schema.names else set()
    found = {}
    for name in schema.names:
        if name in chosen:
            found[name] = torch.tensor(draw(st.lists(finite, max_size=schema.sizes[name] + 16)))
    return found


@st.composite
def vectors(draw, schema):
    return {name: draw(packets(shape)) for name, shape in schema.shapes.items()}


@st.composite
def messages(draw):
    """A schema, with scalars and empty tensors among its shapes, and a message of it."""
    schema = Schema(draw(st.dictionaries(st.text(max_size=8), shapes, max_size=4)))
    granted = draw(st.sampled_from(sorted({1, max(len(schema.names), 1)})))
    message = Message(
        draw(st.sampled_from(Kind)),
        Key(draw(words), draw(words), draw(words)),
        run=draw(digests),
        nonce=draw(digests),
        agreement=draw(digests),
        accepted=draw(words),
        weight=draw(st.floats(0, 1e12)),
        error=draw(st.floats(0, 1e20)),
        rates=tuple(draw(rates) for _ in range(granted)),
        metrics=draw(st.dictionaries(names, st.floats(-1e20, 1e20), max_size=4)),
        states=draw(st.dictionaries(names, codec_states(schema), max_size=2)),
        packets=draw(st.dictionaries(names, vectors(schema), max_size=3)),
        text=draw(st.text(max_size=40)),
    )
    return schema, message


@settings(deadline=None, max_examples=200)
@given(case=messages())
def test_everything_survives_the_round_trip(case):
    schema, message = case
    data = encode(message, schema)
    assert kind_of(data) is message.kind
    same(decode(data, schema, message.kind, message.run), message)
    assert encode(decode(data, schema), schema) == data
    assert decode(data, None).text == message.text


@settings(deadline=None, max_examples=50)
@given(case=messages())
def test_float32_bytes_is_the_length_of_the_float32_message(case):
    """That is what savings are measured against: neither codec state nor text is in it."""
    schema, message = case
    codec = Float32()
    plain = {
        name: codec.encode(torch.zeros(size), torch.empty(0), 32, seed=0)
        for name, size in schema.sizes.items()
    }
    exact = replace(message, states={}, packets=dict.fromkeys(message.packets, plain), text="")
    assert float32_bytes(message, schema) == len(encode(exact, schema))


def survive(data):
    """Decode or refuse; anything but a `MessageError` fails the test."""
    with suppress(MessageError):
        kind_of(data)
    for schema in (SCHEMA, None):
        with suppress(MessageError):
            decode(data, schema)


@settings(deadline=None, max_examples=200)
@given(whole=st.sampled_from(EVERY), data=st.binary(max_size=400))
def test_random_bytes_are_refused_politely(whole, data):
    survive(data)
    survive(whole[:16] + data)
    survive(reseal(whole[:COUNTS_AT] + data + bytes(36)))
    survive(reseal(whole[:HEADER_BYTES] + data + bytes(16)))


@settings(deadline=None, max_examples=400)
@given(
    whole=st.sampled_from(EVERY),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=4),
    cut=st.integers(0, 8),
)
def test_mutations_are_refused_politely(whole, edits, cut):
    data = bytearray(whole)
    for share, piece in edits:
        position = int(share * (len(whole) - CHECKSUM_BYTES - 1))
        data[position : position + len(piece)] = piece
    survive(bytes(data))
    survive(reseal(bytes(data[: len(data) - cut])))


@pytest.mark.parametrize("whole", EVERY, ids=["all sections", *(kind.name for kind in EXAMPLES)])
def test_every_resealed_flip_is_read_or_refused(whole):
    for position in range(8 * (len(whole) - CHECKSUM_BYTES)):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        survive(reseal(bytes(damaged), length=False))
