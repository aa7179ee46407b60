"""Bytes from anywhere: opened if all of them make sense, else `MessageError` and nothing else."""

import random
import sys
import tracemalloc
from collections import Counter

import pytest
import torch
from damage import DAMAGES, label_of, originals, relabelled, with_text
from hypothesis import given
from hypothesis import strategies as st

import fedwsq
from fedwsq.core.errors import MessageError
from fedwsq.parts.parcel import ELEMENTS_PER_BYTE, FREE_ELEMENTS, VECTOR, open_parcel
from fedwsq.wire import Kind, Message, Schema

ORIGINALS = originals()
DATA = ORIGINALS[0]
LABEL = label_of(DATA)
ZEROS = fedwsq.pack({"z": torch.zeros(8, 8)}, "ecq")


def outcome(data):
    """Whether it was opened; whatever was is finite."""
    try:
        found = fedwsq.unpack(data)
    except MessageError:
        return "refused"
    for x in found.values():
        assert not x.is_floating_point() or torch.isfinite(x).all()
    return "opened"


def count_outcomes(count, seed):
    rng = random.Random(seed)
    found = Counter()
    for _ in range(count):
        damage = rng.choice(DAMAGES)
        found[outcome(damage(rng, rng.choice(ORIGINALS)))] += 1
    return found


def test_honest_messages_are_opened():
    assert {outcome(data) for data in ORIGINALS} == {"opened"}


def test_five_thousand_damaged_messages():
    found = count_outcomes(5_000, seed=5)
    assert found.total() == 5_000
    # Damage that was sealed again may be another honest message: a seed, a scale, a code.
    assert 0.01 < found["opened"] / 5_000 < 0.2


@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages():
    found = count_outcomes(100_000, seed=100)
    assert found.total() == 100_000
    assert 0.01 < found["opened"] / 100_000 < 0.2


@given(st.binary(max_size=400))
def test_any_bytes(data):
    assert outcome(data) == "refused"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(LABEL)), JSON)
def test_any_label(key, value):
    outcome(relabelled(DATA, {**LABEL, key: value}))


@given(st.sampled_from(sorted(LABEL["codec"])), JSON)
def test_any_setting_of_a_codec(key, value):
    outcome(relabelled(DATA, {**LABEL, "codec": {**LABEL["codec"], key: value}}))


@given(st.text(max_size=200))
def test_any_text(text):
    assert outcome(with_text(DATA, text)) == "refused"


# Lies, each by name.


def row(shape, name="z", dtype="float32", coded=True):
    return [name, shape, dtype, coded]


def zeros(*rows):
    return relabelled(ZEROS, {**label_of(ZEROS), "tensors": list(rows)})


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row([2**31])], "bytes cannot stand for 2147483648 elements"),
        ([row([2**31 + 1])], "2147483649 elements, at most 2147483648 are taken"),
        ([row([0, 2**40])], "elements, at most 2147483648 are taken"),
        ([row([2**59, 2**59])], "elements, at most 2147483648 are taken"),
        ([row([1] * 65)], "tensor 0 of a packed dictionary: it has 65 dimensions"),
        ([row([-1])], "tensor 0 of a packed dictionary is not described"),
        ([row([True])], "tensor 0 of a packed dictionary is not described"),
        ([row([1.0])], "tensor 0 of a packed dictionary is not described"),
        ([["z", [1], "float32"]], "tensor 0 of a packed dictionary is not described"),
        ([row([8, 8], dtype="int64")], "tensor 0 of a packed dictionary: int64 values travel"),
        ([row([8, 8], dtype="complex64")], "its type is complex64"),
        ([row([8, 8], name="\ud800")], "its name is not Unicode"),
        ([row([8, 8]), row([8, 8])], "two tensors of the same name"),
        ([row([8, 8]), row([8, 8], name="y")], "has 1 tensors, the schema has 2"),
        ([row([8, 8], coded=False)], "codec id 13, this link uses 0"),
    ],
)
def test_a_lie_about_a_tensor(rows, text):
    with pytest.raises(MessageError, match=text):
        fedwsq.unpack(zeros(*rows))


def test_few_bytes_make_no_large_tensor():
    """The longest vector of zeros that a message of this length can claim, and one more."""
    most = FREE_ELEMENTS
    for _ in range(2):  # the label's own length follows the number in it
        most = FREE_ELEMENTS + ELEMENTS_PER_BYTE * len(zeros(row([most])))
    assert fedwsq.unpack(zeros(row([most])))["z"].numel() == most
    with pytest.raises(MessageError, match="cannot stand for"):
        fedwsq.unpack(zeros(row([most + 1])))
    # Whoever says what is expected may get it.
    like = {"z": torch.empty(most + 1)}
    assert fedwsq.unpack(zeros(row([most + 1])), like=like)["z"].numel() == most + 1
    with pytest.raises(MessageError, match="at most 1000 are taken"):
        fedwsq.unpack(zeros(row([most])), max_elements=1000)


def test_a_refusal_takes_no_memory():
    tracemalloc.start()
    for data in (zeros(row([2**31])), with_text(DATA, "[" * 10**5), DATA[:-1]):
        tracemalloc.reset_peak()
        assert outcome(data) == "refused"
        assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (
            {"name": "never_imported:f"},
            "'never_imported:f' is outside the package; .* one of danuq",
        ),
        ({"name": "rotated", "inner": "never_imported:f"}, "outside the package"),
        ({"name": "rotated", "inner": {"name": "never_imported:f"}}, "outside the package"),
        ({"name": "rotated", "inner": ["never_imported:f"]}, "outside the package"),
        ("never_imported:f", "its settings are not a table"),
        ({"name": "nonesuch"}, "codec is 'nonesuch'; it can be danuq"),
        ({"name": "danuq", "block": 10**17}, "danuq block = .* is out of range"),
        ({"name": "danuq", "path": "/etc/passwd"}, "unknown key codec.path"),
        ({"name": "rotated", "inner": {"name": "rotated"}}, "rotates already"),
    ],
)
def test_a_codec_that_nobody_should_build(codec, text, in_empty_folder):
    (in_empty_folder / "never_imported.py").write_text("raise SystemExit")
    with pytest.raises(MessageError, match=text):
        fedwsq.unpack(relabelled(DATA, {**LABEL, "codec": codec}))
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(
    "bits", [True, None, "4", [4], {"name": "never_imported:f"}, {"name": "fixed", "bits": 4}]
)
def test_bits_are_a_number(bits):
    with pytest.raises(MessageError, match="its bits are not a number"):
        fedwsq.unpack(relabelled(DATA, {**LABEL, "bits": bits}))


def nested(depth):
    inner = '{"name":"rotated","inner":' * depth + "1" + "}" * depth
    return '{"codec":' + inner + ',"bits":4,"tensors":[]}'


@pytest.mark.parametrize("text", [nested(100), nested(10**4), "[" * 10**5, "9" * 10**5, "NaN"])
def test_a_text_made_to_hurt(text):
    with pytest.raises(MessageError) as caught:
        fedwsq.unpack(with_text(DATA, text))
    assert len(str(caught.value)) < 500


def test_a_message_of_another_kind():
    reply = fedwsq.encode(Message(Kind.REPLY, fedwsq.Key(0, 0, 0), bytes(16)), Schema({}))
    with pytest.raises(MessageError, match="is of kind reply, expected pack"):
        fedwsq.unpack(reply)


def test_codec_state_that_the_codec_does_not_have():
    parcel = open_parcel(DATA)
    for shared, text in (
        ({"delta": {}}, r"codec state of \['delta'\]"),
        ({VECTOR: {"weight": torch.ones(2)}}, "tensor weight: codec state that its codec does not"),
        ({VECTOR: {"bias": torch.ones(1)}}, "tensor bias: codec state that its codec does not"),
    ):
        packets = fedwsq.decode(DATA, parcel.schema).packets[VECTOR]
        data = parcel.seal(packets, shared, fedwsq.Key(0, 0, 0))
        with pytest.raises(MessageError, match=text):
            fedwsq.unpack(data)


def test_a_packet_that_leans_on_a_scale_that_is_not_there():
    compressor = fedwsq.Compressor(bits=1)
    tensors = {"w": torch.randn(4, 4)}
    compressor.compress(tensors)
    data = compressor.compress(tensors)
    parcel = open_parcel(data)
    packets = fedwsq.decode(data, parcel.schema).packets[VECTOR]
    with pytest.raises(MessageError, match="leans on a shared scale"):
        fedwsq.unpack(parcel.seal(packets, {}, fedwsq.Key(0, 2, 0)))
