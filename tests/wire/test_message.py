"""The format as documented, and a decoder that refuses everything else: each field damaged, cut, flipped and fuzzed."""

import hashlib
import math
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs import Float32, Packet
from fedwsq.codecs.base import rows_of
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Key
from fedwsq.wire import Kind, Message, Schema, decode, encode
from fedwsq.wire.message import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    MAX_METRICS,
    MAX_VECTORS,
    float32_bytes,
)

SCHEMA = Schema({"stem": (1, 1, 2), "conv": (1, 1, 5), "bias": ()})
RUN, NONCE = bytes(range(16)), bytes(range(16, 32))
CODE = b"\x1c\xf8\x04"
MESSAGE = Message(
    Kind.REPLY, Key(7, 3, 12), RUN, NONCE, accepted=2, weight=40.0, error=0.25, rates=(4.0,), metrics={"loss": 1.5},
    states={"delta": {"conv": torch.tensor([0.5])}},
    packets={
        "delta": {
            "stem": Packet(bytes(8), (), 32.0, 2),
            "conv": Packet(CODE, (2.0,), 4.0, 5, own_scale=True, codec=1),
            "bias": Packet(bytes(4), (), 32.0, 1),
        }
    },
)  # fmt: skip
HUGE = 2.0**70  # a float32 above every limit


def reseal(data, *, length=True):
    """The same message with a checksum, and if asked a length, that fit what is in it now."""
    if length:
        data = data[:8] + struct.pack("<Q", len(data)) + data[16:]
    return data[:-16] + hashlib.blake2b(data[:-16], digest_size=16).digest()


def build(**damage):
    """`MESSAGE` as docs/wire-format.md has it, written independently of `encode`; `damage` replaces fields by name."""

    def put(layout, name, value):
        return struct.pack("<" + layout, damage.get(name, value))

    def name(field, text):
        return put("B", f"{field} length", len(text)) + damage.get(field, text)

    def entry(tensor, codec, flags, rate, sides, code):
        return b"".join((
            put("B", f"{tensor} codec", codec), put("B", f"{tensor} flags", flags), put("f", f"{tensor} rate", rate),
            put("I", f"{tensor} sides", len(sides)), put("Q", f"{tensor} code length", len(code)),
            *(put("f", f"{tensor} side", side) for side in sides), damage.get(f"{tensor} code", code),
        ))  # fmt: skip

    body = b"".join((
        put("f", "rate", 4.0),
        name("metric", b"loss"), put("d", "metric value", 1.5),
        name("state vector", b"delta"), put("I", "state tensors", 1),
        put("I", "state index", 1), put("I", "state values", 1), put("f", "state value", 0.5),
        name("vector", b"delta"), put("I", "tensors", 3),
        entry("stem", 0, 0, 32.0, (), bytes(8)),
        entry("conv", 1, 1, 4.0, (2.0,), CODE),
        entry("bias", 0, 0, 32.0, (), bytes(4)),
    ))  # fmt: skip
    header = b"".join((
        damage.get("magic", b"FWSQ"), put("H", "version", 1), put("B", "kind", 3), put("B", "reserved", 0),
        put("Q", "length", 128 + len(body) + 16),
        damage.get("schema", SCHEMA.digest), damage.get("run", RUN), damage.get("nonce", NONCE),
        put("Q", "seed", 7), put("Q", "round", 3), put("Q", "client", 12), put("Q", "accepted", 2),
        put("d", "weight", 40.0), put("d", "error", 0.25),
        put("I", "rates", 1), put("I", "metrics", 1), put("I", "states", 1), put("I", "vectors", 1),
    ))  # fmt: skip
    return reseal(header + body + bytes(16), length=False)


def same(a, b):
    """Equal messages; codec states compared as tensors."""
    assert replace(a, states={}) == replace(b, states={})
    assert a.states.keys() == b.states.keys()
    for vector, tensors in a.states.items():
        assert tensors.keys() == b.states[vector].keys()
        assert all(torch.equal(state, b.states[vector][name]) for name, state in tensors.items())


def read(data, schema=SCHEMA):
    return decode(data, schema, Kind.REPLY, RUN)


DATA = encode(MESSAGE, SCHEMA)
BAD_SCALES = [math.nan, math.inf, -math.inf, -1.0, HUGE]
BAD_RATES = [math.nan, math.inf, -4.0, 0.0, 65.0]
BAD_COUNTS = [2**31, 2**32 - 1]
DAMAGES = [  # field, values, what the error says
    ("magic", [b"FWSX", bytes(4)], "wrong magic"),
    ("version", [0, 2, 2**16 - 1], "unknown version"),
    ("kind", [0, 4, 255], "unknown kind"),
    ("kind", [1, 2], "kind .*, expected reply"),
    ("reserved", [1, 255], "reserved byte"),
    ("length", [len(DATA) + 1, 2**63, 2**64 - 1], "truncated: 2.. bytes, the header says"),
    ("length", [len(DATA) - 1, 0], "trailing bytes: 2.. bytes, the header says"),
    ("schema", [bytes(16)], "foreign schema"),
    ("run", [bytes(16)], "not of this run"),
    ("weight", [*BAD_SCALES, 1e13, 5e-324 * -1], "aggregation weight"),
    ("error", BAD_SCALES, "quantization error"),
    ("rates", [2, 4, *BAD_COUNTS], "rates: a message has none, one, or one for each"),
    ("metrics", [MAX_METRICS + 1, *BAD_COUNTS], "metrics, at most 64"),
    ("states", [MAX_VECTORS + 1, *BAD_COUNTS], "vectors of codec state, at most 64"),
    ("vectors", [MAX_VECTORS + 1, *BAD_COUNTS], "vectors, at most 64"),
    ("vectors", [2], "name of a vector"),
    ("vectors", [0], "trailing bytes after the last tensor"),
    ("rate", BAD_RATES, "rates: rate is"),
    ("metric length", [0, 65, 255], "name of a metric"),
    ("metric", [b"\xff\xfe\xfd\xfc", b"los\xc3"], "name of a metric is not UTF-8"),
    ("metric value", [math.nan, math.inf, -math.inf, 1e21, -1e21], "metric 'loss'"),
    ("state vector length", [0, 65, 255], "name of a vector of codec state"),
    ("state vector", [b"\xff\xfe\xfd\xfc\xfb"], "name of a vector of codec state is not UTF-8"),
    ("state tensors", [4, *BAD_COUNTS], "codec state of 'delta' names .* tensors"),
    ("state tensors", [2, 3], "codec state of 'delta'"),
    ("state index", [3, *BAD_COUNTS], "codec state of 'delta' names tensor"),
    ("state values", [70, *BAD_COUNTS], "codec state of 'delta' conv: .* values"),
    ("state value", BAD_SCALES, "codec state of 'delta' conv"),
    ("vector length", [0, 65, 255], "name of a vector"),
    ("vector", [b"\xff\xfe\xfd\xfc\xfb"], "name of a vector is not UTF-8"),
    ("tensors", [0, 2, 4, *BAD_COUNTS], "vector 'delta' has .* tensors, the schema has 3"),
    ("conv flags", [2, 3, 0x80], "tensor conv of 'delta': unknown flags"),
    ("conv rate", BAD_RATES, "tensor conv of 'delta': rate is"),
    ("conv sides", [70, *BAD_COUNTS], "tensor conv of 'delta': .* side values for 5 elements"),
    ("bias sides", [66], "tensor bias of 'delta': 66 side values for 1 elements"),
    ("bias sides", [2, 16], "side values of tensor bias of 'delta': .* bytes announced, 4 left"),
    ("conv side", BAD_SCALES, "scale of tensor conv of 'delta'"),
    ("conv code length", [8 * (5 + 64) + 65, 2**32, 2**63, 2**64 - 1], "tensor conv of 'delta': code of"),
    ("bias code length", [5, 72], "code of tensor bias of 'delta': .* bytes announced, 4 left"),
    ("bias code length", [3, 0], "trailing bytes after the last tensor"),
]  # fmt: skip
EACH = [
    pytest.param(field, value, text, id=f"{field}={value}")
    for field, values, text in DAMAGES
    for value in values
]
# Any value of these is a valid message; whoever knows the order, or the link, holds them against what was asked.
FREE = [
    ("nonce", bytes(16), lambda m: m.nonce),
    ("seed", 2**64 - 1, lambda m: m.key.seed),
    ("round", 2**64 - 1, lambda m: m.key.round),
    ("client", 2**64 - 1, lambda m: m.key.client),
    ("accepted", 2**64 - 1, lambda m: m.accepted),
    ("conv codec", 255, lambda m: m.packets["delta"]["conv"].codec),
    ("conv flags", 0, lambda m: m.packets["delta"]["conv"].own_scale),
    ("conv code", b"abc", lambda m: m.packets["delta"]["conv"].code),
]


def test_encode_writes_the_documented_layout():
    assert build().hex() == DATA.hex()
    assert (HEADER_BYTES, CHECKSUM_BYTES) == (128, 16)


def test_schema_digest_is_the_documented_one():
    text = b'[["stem", [1, 1, 2]], ["conv", [1, 1, 5]], ["bias", []]]'
    assert SCHEMA.digest == hashlib.blake2b(text, digest_size=16).digest()
    accented = b'[["\\u00fc", [0]], ["\\"\\\\", [2]]]'
    assert (
        Schema({"ü": (0,), '"\\': (2,)}).digest
        == hashlib.blake2b(accented, digest_size=16).digest()
    )


@pytest.mark.parametrize(("field", "value", "text"), EACH)
def test_each_damaged_field_is_named(field, value, text):
    with pytest.raises(MessageError, match=text):
        read(build(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value"), [(p.values[0], p.values[1]) for p in EACH] + [f[:2] for f in FREE]
)
def test_damage_on_the_way_fails_the_checksum(field, value):
    damaged = build(**{field: value})
    assert len(damaged) == len(DATA)
    with pytest.raises(MessageError):
        read(damaged[:-16] + DATA[-16:])


@pytest.mark.parametrize(("field", "value", "found"), FREE, ids=[field for field, _, _ in FREE])
def test_fields_that_only_the_receiver_can_judge_come_back_as_they_are(field, value, found):
    assert found(read(build(**{field: value}))) == value != found(MESSAGE)


def test_order_of_the_checks():
    """A damaged message is never taken for a foreign one, and structure is only read once the checksum holds."""
    for damage in (
        {"schema": bytes(16)},
        {"run": bytes(16)},
        {"kind": 9},
        {"vectors": 65},
        {"weight": math.nan},
    ):
        with pytest.raises(MessageError, match="bad checksum"):
            read(build(**damage)[:-16] + bytes(16))


def test_an_order_needs_a_rate():
    key = Key(0, 1, 0)
    assert decode(encode(Message(Kind.ORDER, key, RUN, rates=(2.0,)), SCHEMA), SCHEMA).rates == (
        2.0,
    )
    with pytest.raises(MessageError, match="0 rates: an order has one"):
        decode(encode(Message(Kind.ORDER, key, RUN), SCHEMA), SCHEMA)


def test_every_truncation_is_refused():
    for length in range(len(DATA)):
        with pytest.raises(MessageError, match="truncated"):
            read(DATA[:length])


def test_every_truncation_that_hides_itself_is_refused():
    for length in range(HEADER_BYTES, len(DATA) - CHECKSUM_BYTES):
        with pytest.raises(MessageError):
            read(reseal(DATA[:length] + bytes(16)))


@pytest.mark.parametrize("more", [1, 16, 1000])
def test_trailing_bytes_are_refused(more):
    with pytest.raises(MessageError, match="trailing bytes"):
        read(DATA + bytes(more))
    with pytest.raises(MessageError, match=f"{more} trailing bytes after the last tensor"):
        read(reseal(DATA[:-16] + bytes(more + 16)))


def test_every_flipped_bit_is_refused():
    for position in range(8 * len(DATA)):
        damaged = bytearray(DATA)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(MessageError):
            read(bytes(damaged))


@pytest.mark.parametrize("first", ["metrics", "states", "packets"])
def test_a_name_comes_once(first):
    content = getattr(MESSAGE, first)
    (value,) = content.values()
    twins = encode(replace(MESSAGE, **{first: {"twin a": value, "twin b": value}}), SCHEMA)
    with pytest.raises(MessageError, match="'twin a' comes twice"):
        read(reseal(twins.replace(b"twin b", b"twin a")))


@pytest.mark.parametrize(
    ("first", "limit"), [("metrics", MAX_METRICS), ("states", MAX_VECTORS), ("packets", 64)]
)
def test_as_many_names_as_allowed(first, limit):
    (value,) = getattr(MESSAGE, first).values()
    most = replace(MESSAGE, **{first: {f"name {i}": value for i in range(limit)}})
    same(read(encode(most, SCHEMA)), most)
    with pytest.raises(MessageError, match=f"{limit + 1} (metrics|vectors).*, at most {limit}"):
        read(
            encode(
                replace(MESSAGE, **{first: {f"name {i}": value for i in range(limit + 1)}}), SCHEMA
            )
        )


@pytest.mark.parametrize("name", ["", "x" * 65, "ü" * 33])
@pytest.mark.parametrize("first", ["metrics", "states", "packets"])
def test_names_that_do_not_fit_are_not_written(first, name):
    (value,) = getattr(MESSAGE, first).values()
    with pytest.raises(MessageError, match=r"must have 1 to 64"):
        encode(replace(MESSAGE, **{first: {name: value}}), SCHEMA)
    same(read(encode(longest := replace(MESSAGE, **{first: {"ü" * 32: value}}), SCHEMA)), longest)


@pytest.mark.parametrize(
    "shapes",
    [
        {"stem": (1, 1, 2), "conv": (1, 1, 5)},
        {"stem": (1, 1, 2), "conv": (1, 1, 5), "bias": (1,)},
        {"stem": (1, 2, 1), "conv": (1, 1, 5), "bias": ()},
        {"conv": (1, 1, 5), "stem": (1, 1, 2), "bias": ()},
        {"stem": (1, 1, 2), "conv": (1, 1, 5), "bia": ()},
        {},
    ],
)
def test_another_schema_is_foreign(shapes):
    with pytest.raises(MessageError, match="foreign schema"):
        read(DATA, Schema(shapes))


def test_codec_states_are_written_in_the_order_of_the_schema():
    states = {
        "delta": {name: torch.tensor([float(i)]) for i, name in enumerate(reversed(SCHEMA.names))}
    }
    shuffled = replace(MESSAGE, states=states)
    same(read(encode(shuffled, SCHEMA)), shuffled)


def test_codec_states_come_in_ascending_order():
    states = {"delta": {"stem": torch.tensor([1.0]), "conv": torch.tensor([1.0])}}
    data = encode(replace(MESSAGE, states=states), SCHEMA)
    entries = struct.pack("<IIf", 0, 1, 1.0), struct.pack("<IIf", 1, 1, 1.0)
    for wrong in (entries[::-1], entries[:1] * 2, entries[1:] * 2):
        with pytest.raises(
            MessageError, match=r"codec state of 'delta' names tensor \d after tensor -?\d"
        ):
            read(reseal(data.replace(b"".join(entries), b"".join(wrong))))


def test_without_a_schema_tensors_are_numbered():
    """`fedwsq inspect` reads a message of any number of vectors with nothing else at hand."""
    two = replace(
        MESSAGE, packets={"delta": MESSAGE.packets["delta"], "control": MESSAGE.packets["delta"]}
    )
    found = decode(encode(two, SCHEMA), None)
    numbered = {
        f"#{i}": packet._replace(numel=-1)
        for i, packet in enumerate(MESSAGE.packets["delta"].values())
    }
    assert found.packets == {"delta": numbered, "control": numbered}
    assert found.states["delta"]["#1"].tolist() == [0.5]
    same(replace(found, packets={}, states={}), replace(MESSAGE, packets={}, states={}))


EXABYTES = [
    ("length", 2**63),
    ("rates", 2**32 - 1),
    ("state tensors", 2**32 - 1),
    ("state values", 2**32 - 1),
    ("tensors", 2**32 - 1),
    ("conv sides", 2**32 - 1),
    ("conv code length", 2**60),
    ("conv code length", 2**63),
]


@pytest.mark.parametrize(
    ("field", "value"), EXABYTES, ids=[f"{field}={value}" for field, value in EXABYTES]
)
@pytest.mark.parametrize("known", [True, False], ids=["schema", "no schema"])
def test_announced_exabytes_are_refused_before_they_are_allocated(field, value, known):
    """Tensors so large that the schema would allow the length: only the buffer speaks against it."""
    schema = Schema(dict.fromkeys(SCHEMA.names, (2**31, 2**31)))
    data = build(**{field: value, "schema": schema.digest})
    tracemalloc.start()
    try:
        with pytest.raises(MessageError):
            read(data, schema if known else None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


finite = st.floats(0, 2.0**66, width=32)  # the limit is 1e20
rates = st.floats(2.0**-10, 64, width=32)
names = st.text(min_size=1, max_size=16).filter(lambda text: len(text.encode()) <= 64)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
words = st.integers(0, 2**64 - 1)
runs = st.binary(min_size=16, max_size=16)


@st.composite
def packets(draw, shape):
    size = math.prod(shape)
    code = draw(st.binary(max_size=min(8 * size + 64, 80)))
    side = tuple(draw(st.lists(finite, max_size=min(size + 16, 20))))
    return Packet(
        code,
        side,
        draw(rates),
        size,
        draw(st.booleans()),
        draw(st.integers(0, 255)),
        rows_of(shape),
    )


@st.composite
def messages(draw):
    """A schema, with scalars and empty tensors among its shapes, and a message of it."""
    schema = Schema(draw(st.dictionaries(st.text(max_size=8), shapes, max_size=4)))
    count = len(schema.names)
    some = st.sets(st.sampled_from(schema.names)) if count else st.just(set())
    states = {
        vector: {
            name: torch.tensor(draw(st.lists(finite, max_size=schema.sizes[name] + 16)))
            for name in schema.names
            if name in draw(some)
        }
        for vector in draw(st.sets(names, max_size=2))
    }
    vectors = {
        vector: {name: draw(packets(shape)) for name, shape in schema.shapes.items()}
        for vector in draw(st.lists(names, max_size=3, unique=True))
    }
    many = draw(st.sampled_from(sorted({1, max(count, 1)})))
    message = Message(
        draw(st.sampled_from(Kind)), Key(draw(words), draw(words), draw(words)), draw(runs), draw(runs), draw(words),
        draw(st.floats(0, 1e12)), draw(st.floats(0, 1e20)), tuple(draw(rates) for _ in range(many)),
        draw(st.dictionaries(names, st.floats(-1e20, 1e20), max_size=4)), states, vectors,
    )  # fmt: skip
    return schema, message


@settings(deadline=None, max_examples=200)
@given(case=messages())
def test_everything_survives_the_round_trip(case):
    schema, message = case
    data = encode(message, schema)
    same(decode(data, schema, message.kind, message.run), message)
    assert encode(decode(data, schema), schema) == data
    decode(data, None)


@settings(deadline=None, max_examples=50)
@given(case=messages())
def test_float32_bytes_is_the_length_of_the_float32_message(case):
    schema, message = case
    codec = Float32()
    plain = {
        name: codec.encode(torch.zeros(size), torch.empty(0), 32, seed=0)
        for name, size in schema.sizes.items()
    }
    exact = replace(message, states={}, packets=dict.fromkeys(message.packets, plain))
    assert float32_bytes(message, schema) == len(encode(exact, schema))


def survive(data):
    """Decode or refuse; anything but a `MessageError` fails the test."""
    for schema in (SCHEMA, None):
        with suppress(MessageError):
            decode(data, schema)


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=400))
def test_random_bytes_are_refused_politely(data):
    survive(data)
    survive(DATA[:16] + data)
    survive(reseal(DATA[:112] + data + bytes(32)))
    survive(reseal(DATA[:128] + data + bytes(16)))


@settings(deadline=None, max_examples=400)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(DATA) - 17), st.binary(min_size=1, max_size=8)), max_size=4
    ),
    cut=st.integers(0, 8),
)
def test_mutations_are_refused_politely(edits, cut):
    data = bytearray(DATA)
    for position, piece in edits:
        data[position : position + len(piece)] = piece
    survive(bytes(data))
    survive(reseal(bytes(data[: len(data) - cut])))


def test_every_resealed_flip_is_read_or_refused():
    for position in range(8 * (len(DATA) - CHECKSUM_BYTES)):
        damaged = bytearray(DATA)
        damaged[position // 8] ^= 1 << position % 8
        survive(reseal(bytes(damaged), length=False))
