"""The format as documented, and a decoder that refuses everything else: each field damaged or cut.

Bytes at random are in `test_message_fuzz.py`.
"""

import hashlib
import math
import struct
import tracemalloc
from dataclasses import replace

import pytest
import torch
from message_layout import DATA, EXAMPLES, MESSAGE, RUN, SCHEMA, TEXT, build, reseal, same

from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Key
from fedwsq.wire import Kind, Message, Schema, decode, encode
from fedwsq.wire.message import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    MAX_METRICS,
    MAX_TEXT_BYTES,
    MAX_VECTORS,
    order_bytes,
)
from fedwsq.wire.parse import kind_of

HUGE = 2.0**70  # a float32 above every limit
BAD_SCALES = [math.nan, math.inf, -math.inf, -1.0, HUGE]
BAD_RATES = [math.nan, math.inf, -4.0, 0.0, 65.0]
BAD_COUNTS = [2**31, 2**32 - 1]
LAST = "trailing bytes after the last section"
# field, values, what the error says
DAMAGES = [
    ("magic", [b"FWSX", bytes(4)], "wrong magic"),
    ("version", [0, 1, 3, 2**16 - 1], r"unknown version \d+: this build reads version 2"),
    ("kind", [0, 13, 255], r"unknown kind \d+: known are 1 \(broadcast\), .*, 12 \(said\)"),
    ("kind", [1, 2, 4, 5, 6, 7, 8, 9, 11, 12], "kind .*, expected reply"),
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
    ("vectors", [0], LAST),
    ("text", [MAX_TEXT_BYTES + 1, *BAD_COUNTS], r"\d+ bytes of text, at most 1048576 are allowed"),
    ("text", [12, 27, MAX_TEXT_BYTES], r"text: \d+ bytes announced, 11 left"),
    ("text", [10, 4, 0], LAST),
    ("text", [5, 7], "text is not UTF-8"),  # in the middle of a letter
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
    ("bias sides", [4, 16], "side values of tensor bias of 'delta': .* bytes announced, 15 left"),
    ("conv side", BAD_SCALES, "scale of tensor conv of 'delta'"),
    (
        "conv code length",
        [8 * (5 + 64) + 65, 2**32, 2**63, 2**64 - 1],
        "tensor conv of 'delta': code of",
    ),
    ("bias code length", [16, 72], "code of tensor bias of 'delta': .* bytes announced, 15 left"),
    ("bias code length", [3, 1], LAST),
    ("bias code length", [0], "text is not UTF-8"),
    (
        "text bytes",
        [
            b"\xff" * 11,
            b'["gr\xfc\xdfe"]  ',  # Latin-1
            b'["\xc0\x80"]     ',  # overlong
            b'["\xed\xa0\x80"]    ',  # half a surrogate pair
            b'["\xf4\x90\x80\x80"]   ',  # beyond the last code point
            b'["grusse"]\xc3',
        ],
        "text is not UTF-8",
    ),
]
EACH = [
    pytest.param(field, value, text, id=f"{field}={value}")
    for field, values, text in DAMAGES
    for value in values
]
# Any value of these is a valid message; whoever knows the order, the link or the settings holds
# them against what was asked.
FREE = [
    ("agreement", bytes(16), lambda m: m.agreement),
    ("nonce", bytes(16), lambda m: m.nonce),
    ("seed", 2**64 - 1, lambda m: m.key.seed),
    ("round", 2**64 - 1, lambda m: m.key.round),
    ("client", 2**64 - 1, lambda m: m.key.client),
    ("accepted", 2**64 - 1, lambda m: m.accepted),
    ("conv codec", 255, lambda m: m.packets["delta"]["conv"].codec),
    ("conv flags", 0, lambda m: m.packets["delta"]["conv"].own_scale),
    ("conv code", b"abc", lambda m: m.packets["delta"]["conv"].code),
    ("text bytes", b"\0\x1b any text", lambda m: m.text.encode()),
]


def read(data, schema=SCHEMA):
    return decode(data, schema, Kind.REPLY, RUN)


# The layout


def test_encode_writes_the_documented_layout():
    assert build().hex() == DATA.hex()
    assert (HEADER_BYTES, CHECKSUM_BYTES) == (148, 16)


def test_schema_digest_is_the_documented_one():
    text = b'[["stem", [1, 1, 2]], ["conv", [1, 1, 5]], ["bias", []]]'
    assert SCHEMA.digest == hashlib.blake2b(text, digest_size=16).digest()

    escaped = b'[["\\u00fc", [0]], ["\\"\\\\", [2]]]'
    expected = hashlib.blake2b(escaped, digest_size=16).digest()
    assert Schema({"ü": (0,), '"\\': (2,)}).digest == expected


# Kinds


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_survives_the_round_trip(kind):
    message = EXAMPLES[kind]
    data = encode(message, SCHEMA)
    assert data[6] == kind
    assert kind_of(data) is kind_of(memoryview(data)) is kind
    same(decode(data, SCHEMA, kind, RUN), message)
    same(decode(memoryview(data), SCHEMA), message)
    # Without a schema tensors have no names; all else is as it was.
    plain = replace(message, packets={}, states={})
    same(replace(decode(data, None, kind), packets={}, states={}), plain)


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_is_taken_for_no_other(kind):
    data = encode(EXAMPLES[kind], SCHEMA)
    for other in set(Kind) - {kind}:
        text = f"message is of kind {kind.name.lower()}, expected {other.name.lower()}"
        for schema in (SCHEMA, None):
            with pytest.raises(MessageError, match=text):
                decode(data, schema, other, RUN)


@pytest.mark.parametrize("kind", Kind)
def test_the_numbers_of_the_kinds_are_the_documented_ones(kind):
    numbers = {
        "broadcast": 1,
        "order": 2,
        "reply": 3,
        "evaluate": 4,
        "score": 5,
        "scores": 6,
        "hello": 7,
        "welcome": 8,
        "forgot": 9,
        "pack": 10,
        "phase": 11,
        "said": 12,
    }
    assert numbers[kind.name.lower()] == kind


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ({"magic": b"FWSX"}, "wrong magic"),
        ({"version": 1}, "unknown version 1: this build reads version 2"),
        ({"kind": 0}, "unknown kind 0"),
        ({"kind": 13}, "unknown kind 13"),
        ({"reserved": 1}, "reserved byte is 1"),
        ({"length": 1}, "trailing bytes"),
    ],
)
def test_kind_of_checks_what_comes_before_the_sections(damage, text):
    with pytest.raises(MessageError, match=text):
        kind_of(build(**damage))


def test_kind_of_refuses_what_was_damaged_anywhere():
    for data in (b"", DATA[:40], DATA[:-1]):
        with pytest.raises(MessageError, match="truncated"):
            kind_of(data)
    for position in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[position] ^= 1
        with pytest.raises(MessageError):
            kind_of(bytes(damaged))


def test_kind_of_leaves_the_sections_to_the_decoder():
    """Whoever asks is about to decode, by the kind that it found."""
    data = build(**{"metric value": math.nan})
    assert kind_of(data) is Kind.REPLY
    with pytest.raises(MessageError, match="metric 'loss'"):
        decode(data, SCHEMA, kind_of(data))


# Damage


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


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": bytes(16)},
        {"agreement": bytes(16)},
        {"run": bytes(16)},
        {"kind": 10},
        {"vectors": 65},
        {"text": 2**32 - 1},
        {"weight": math.nan},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_damaged_message_is_never_taken_for_a_foreign_one(damage):
    """Structure is only read once the checksum holds."""
    with pytest.raises(MessageError, match="bad checksum"):
        read(build(**damage)[:-16] + bytes(16))


def test_another_version_is_named_before_anything_else_of_it_is_read():
    """Its header may be shorter, and its checksum elsewhere."""
    for length in (6, 16, HEADER_BYTES, len(DATA)):
        with pytest.raises(MessageError, match="unknown version 3: this build reads version 2"):
            read(build(version=3)[:length])
    with pytest.raises(MessageError, match=r"truncated: 5 bytes, a message has at least 164"):
        read(build(version=3)[:5])


def test_an_order_needs_a_rate():
    order = EXAMPLES[Kind.ORDER]
    assert decode(encode(order, SCHEMA), SCHEMA).rates == (4.0,)
    for schema in (SCHEMA, None):
        with pytest.raises(MessageError, match="0 rates: an order has one"):
            decode(encode(replace(order, rates=()), SCHEMA), schema)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.ORDER])
def test_no_other_kind_needs_a_rate(kind):
    message = replace(EXAMPLES[kind], rates=())
    same(decode(encode(message, SCHEMA), SCHEMA), message)


@pytest.mark.parametrize("kind", Kind)
def test_every_truncation_is_refused(kind):
    data = encode(EXAMPLES[kind], SCHEMA)
    for length in range(len(data)):
        with pytest.raises(MessageError, match="truncated"):
            decode(data[:length], SCHEMA)


@pytest.mark.parametrize("kind", Kind)
def test_every_truncation_that_hides_itself_is_refused(kind):
    data = encode(replace(EXAMPLES[kind], text=TEXT), SCHEMA)
    for length in range(HEADER_BYTES, len(data) - CHECKSUM_BYTES):
        with pytest.raises(MessageError):
            decode(reseal(data[:length] + bytes(16)), SCHEMA)


@pytest.mark.parametrize("more", [1, 16, 1000])
def test_trailing_bytes_are_refused(more):
    with pytest.raises(MessageError, match="trailing bytes"):
        read(DATA + bytes(more))
    with pytest.raises(MessageError, match=f"{more} trailing bytes after the last section"):
        read(reseal(DATA[:-16] + bytes(more + 16)))


@pytest.mark.parametrize("kind", Kind)
def test_every_flipped_bit_is_refused(kind):
    data = encode(EXAMPLES[kind], SCHEMA)
    for position in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(MessageError):
            decode(bytes(damaged), SCHEMA)


EXABYTES = [
    ("length", 2**63),
    ("rates", 2**32 - 1),
    ("state tensors", 2**32 - 1),
    ("state values", 2**32 - 1),
    ("tensors", 2**32 - 1),
    ("conv sides", 2**32 - 1),
    ("conv code length", 2**60),
    ("conv code length", 2**63),
    ("text", 2**20),  # as much as is allowed
    ("text", 2**32 - 1),
]


@pytest.mark.parametrize(
    ("field", "value"), EXABYTES, ids=[f"{field}={value}" for field, value in EXABYTES]
)
@pytest.mark.parametrize("known", [True, False], ids=["schema", "no schema"])
def test_announced_exabytes_are_refused_before_they_are_allocated(field, value, known):
    """Tensors so large that the schema would allow the length: only the buffer is against it."""
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


# Names and text


@pytest.mark.parametrize("first", ["metrics", "states", "packets"])
def test_a_name_comes_once(first):
    (value,) = getattr(MESSAGE, first).values()
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

    more = replace(MESSAGE, **{first: {f"name {i}": value for i in range(limit + 1)}})
    with pytest.raises(MessageError, match=f"{limit + 1} (metrics|vectors).*, at most {limit}"):
        read(encode(more, SCHEMA))


@pytest.mark.parametrize("name", ["", "x" * 65, "ü" * 33])
@pytest.mark.parametrize("first", ["metrics", "states", "packets"])
def test_names_that_do_not_fit_are_not_written(first, name):
    (value,) = getattr(MESSAGE, first).values()
    with pytest.raises(MessageError, match=r"must have 1 to 64"):
        encode(replace(MESSAGE, **{first: {name: value}}), SCHEMA)
    longest = replace(MESSAGE, **{first: {"ü" * 32: value}})
    same(read(encode(longest, SCHEMA)), longest)


@pytest.mark.parametrize("text", ["", "x", "\0", "ü\U0001f600", "{}" * 5000])
def test_any_text_comes_back(text):
    message = replace(MESSAGE, text=text)
    data = encode(message, SCHEMA)
    assert len(data) == len(DATA) + len(text.encode()) - len(TEXT.encode())
    same(read(data), message)
    assert decode(data, None).text == text


def test_as_much_text_as_allowed():
    """Its limit is one of bytes, not of letters."""
    assert MAX_TEXT_BYTES == 2**20
    most = replace(MESSAGE, text="ü" * 2**19)
    same(read(encode(most, SCHEMA)), most)
    for schema in (SCHEMA, None):
        with pytest.raises(MessageError, match="1048577 bytes of text, at most 1048576"):
            decode(encode(replace(MESSAGE, text="ü" * 2**19 + "x"), SCHEMA), schema)


# Schemas


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
    states = {name: torch.tensor([float(i)]) for i, name in enumerate(reversed(SCHEMA.names))}
    shuffled = replace(MESSAGE, states={"delta": states})
    same(read(encode(shuffled, SCHEMA)), shuffled)


def test_codec_states_come_in_ascending_order():
    states = {"delta": {"stem": torch.tensor([1.0]), "conv": torch.tensor([1.0])}}
    data = encode(replace(MESSAGE, states=states), SCHEMA)
    stem = struct.pack("<IIf", 0, 1, 1.0)
    conv = struct.pack("<IIf", 1, 1, 1.0)
    for wrong in (conv + stem, stem + stem, conv + conv):
        with pytest.raises(
            MessageError, match=r"codec state of 'delta' names tensor \d after tensor -?\d"
        ):
            read(reseal(data.replace(stem + conv, wrong)))


def test_without_a_schema_tensors_are_numbered():
    """`fedwsq inspect` reads a message of any number of vectors with nothing else at hand."""
    delta = MESSAGE.packets["delta"]
    two = replace(MESSAGE, packets={"delta": delta, "control": delta})
    found = decode(encode(two, SCHEMA), None)
    numbered = {f"#{i}": packet._replace(numel=-1) for i, packet in enumerate(delta.values())}
    assert found.packets == {"delta": numbered, "control": numbered}
    assert found.states["delta"]["#1"].tolist() == [0.5]
    same(replace(found, packets={}, states={}), replace(MESSAGE, packets={}, states={}))


# Lengths


@pytest.mark.parametrize("rates", [1, 3])
def test_order_bytes_is_the_length_of_an_order(rates):
    order = Message(Kind.ORDER, Key(0, 1, 0), RUN, rates=(2.0,) * rates)
    assert order_bytes(rates) == len(encode(order, SCHEMA)) == 148 + 4 * rates + 16


@pytest.mark.parametrize("given", [None, "text", 7])
def test_what_is_no_bytes_is_no_message(given):
    with pytest.raises(MessageError, match=f"a message is bytes, not {type(given).__name__}"):
        decode(given, None)


def test_what_is_no_schema_is_refused():
    with pytest.raises(ConfigError, match="schema is of type int, must be a fedwsq Schema"):
        decode(bytes(200), 5)
