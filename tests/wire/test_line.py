"""Which tensors are coded, what that costs, and that what arrives is what the codec made of it."""

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fedwsq.codecs import CODECS, BitPolicy, Danuq, Fixed, Float32, Rates
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Key
from fedwsq.models import MODELS, resnet18
from fedwsq.wire import Kind, Line, Link, Message, Schema, Sums, decode, encode
from fedwsq.wire.line import entry_bytes
from fedwsq.wire.link import SELECTS
from fedwsq.wire.message import (
    CHECKSUM_BYTES,
    ENTRY_BYTES,
    HEADER_BYTES,
    REPLY_METRICS,
    float32_bytes,
)
from user_code import Ternary

WORKED = json.loads((Path(__file__).parents[1] / "golden" / "worked.json").read_text())
KEY = Key(seed=7, round=3, client=12)
RUN = bytes(range(16))
SCHEMA = Schema(
    {
        "stem": (2, 1, 3),
        "a": (2, 2, 3),
        "b": (5, 2, 1),
        "norm": (2,),
        "fc": (3, 2),
        "temperature": (),
    }
)


@dataclass(frozen=True)
class Granting(BitPolicy):
    """A bit policy that answers with what it was given."""

    answer: object

    def __call__(self, request):
        return self.answer


@dataclass(frozen=True)
class Fractional(Float32):
    """Stands for an entropy-coded codec: any rate of an interval, code no longer than allowed."""

    wire_id: ClassVar[int] = 200

    @property
    def rates(self):
        return Rates.between(0.1, 8.0)

    def encode(self, x, shared, rate, seed):
        return Float32().encode(x, shared, 32, seed)._replace(rate=rate)


def line_of(codec, bits=4, select="published", schema=SCHEMA):
    """A line with this codec; `bits` is a number or a policy."""
    policy = Fixed(bits) if isinstance(bits, int) else bits
    return Line(Link(codec, policy, select), schema)


def schema_of(model):
    return Schema({name: tuple(p.shape) for name, p in model.named_parameters()})


def resnet18_schema(classes):
    with torch.device("meta"):
        return schema_of(resnet18(classes=classes))


def random_params(generator, schema):
    return {
        name: torch.randn(shape, generator=generator) * 2e-3
        for name, shape in schema.shapes.items()
    }


def random_vectors(names=("delta",), schema=SCHEMA):
    generator = torch.Generator().manual_seed(0)
    return {vector: random_params(generator, schema) for vector in names}


def through_bytes(packets, schema=SCHEMA):
    message = Message(Kind.REPLY, KEY, RUN, packets=packets)
    return decode(encode(message, schema), schema, Kind.REPLY, RUN).packets


@pytest.mark.parametrize("offered", [(1.6,), (1.6, 3.2)], ids=["one rate", "two rates"])
def test_a_rate_that_float32_cannot_hold_arrives(offered):
    """An order says 1.60000002 where the codec says 1.6."""
    line = line_of(Ternary(offered), Fixed(1.6), "weights")
    granted = line.grant(KEY, None, {})
    sent = line.send(random_vectors(), {}, KEY, granted)
    packets = through_bytes(sent.packets)
    line.check(packets, ("delta",), granted)
    found = line.receive(packets, {}, KEY)["delta"]["a"]
    assert torch.equal(found.flatten(), Ternary().decode(packets["delta"]["a"], None, 0))
    assert line.reply_bytes(1.6, ("delta",)) == line.granted_bytes(granted, ("delta",))
    assert str(line.link.codec.rates) == ", ".join(map(str, offered))


def test_lengths_that_are_remembered_have_an_end():
    for number in range(10_000):
        entry_bytes(Fractional(), 100, 1, 1 + number / 10_000)
    assert entry_bytes.cache_info().currsize < 10_000


# Which tensors


@pytest.mark.parametrize(
    ("select", "tensors", "parameters"),
    [
        ("published", 19, 11_157_504),
        ("weights", 21, 11_157_504 + 1_728 + 5_120),
        ("all", 62, 11_173_962),
    ],
)
def test_what_each_select_takes_of_resnet18(select, tensors, parameters):
    schema = resnet18_schema(10)
    coded = line_of(Danuq(scale_init=1e-3), 4, select, schema).coded
    assert len(coded) == tensors
    assert sum(schema.sizes[name] for name in coded) == parameters


def test_published_takes_the_blocks_convolutions_and_shortcuts():
    schema = resnet18_schema(10)
    coded = line_of(Danuq(scale_init=1e-3), schema=schema).coded
    left = [shape for name, shape in schema.shapes.items() if name not in coded and len(shape) == 4]
    assert left == [(64, 3, 3, 3)]  # the stem
    kernels = [schema.shapes[name][2:] for name in coded]
    assert (kernels.count((3, 3)), kernels.count((1, 1))) == (16, 3)


@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_select_takes_something_of_every_model(model, select):
    schema = schema_of(MODELS[model]())
    coded = line_of(Danuq(scale_init=1e-3), 4, select, schema).coded
    assert coded
    assert coded <= set(schema.names)


@pytest.mark.parametrize(
    "shapes", [{"weight": (3, 2), "bias": (3,)}, {"conv": (2, 1, 3), "fc": (3, 2)}, {}]
)
def test_a_select_that_takes_nothing_is_an_error(shapes):
    schema = Schema(shapes)
    line = line_of(Danuq(scale_init=1e-3), schema=schema)
    for use in (
        lambda: line.coded,
        lambda: line.init(("delta",)),
        lambda: line.grant(KEY, None, {}),
    ):
        with pytest.raises(
            ConfigError, match=r'select = "published" chooses no tensor .* use "weights" or "all"'
        ):
            use()
    assert Line(Link(), schema).coded == frozenset()  # float32 codes nothing anyway


def test_each_tensor_has_a_codec():
    rest = CODECS["float16"]()
    line = Line(Link(Danuq(scale_init=1e-3), Fixed(4), rest=rest), SCHEMA)
    expected = dict.fromkeys(SCHEMA.names, rest) | {
        "a": Danuq(scale_init=1e-3),
        "b": Danuq(scale_init=1e-3),
    }
    assert {slot.name: slot.codec for slot in line.slots} == expected


@pytest.mark.parametrize(
    ("link", "lossy"),
    [
        (Link(), False),
        (Link(select="all"), False),
        (Link(Danuq(scale_init=1e-3), Fixed(4)), True),
        (Link(rest=CODECS["danuq8"]()), True),
        (Link(select="all", rest=CODECS["danuq8"]()), False),  # there is no rest
    ],
)
def test_what_is_lossy(link, lossy):
    assert Line(link, SCHEMA).lossy == lossy


# Rates


def test_a_codec_with_a_single_rate_grants_it():
    assert line_of(Float32(), 4).grant(KEY, None, {}) == (32.0,)


def test_one_rate_for_all_tensors():
    line = line_of(Danuq(scale_init=1e-3), 2)
    rates = line.grant(KEY, None, {})
    assert rates == (2.0,)
    assert line.mean_bits(rates) == 2.0
    packets = line.send(random_vectors(), line.init(("delta",)), KEY, rates).packets["delta"]
    assert {name: packet.rate for name, packet in packets.items()} == {
        "stem": 32,
        "a": 2,
        "b": 2,
        "norm": 32,
        "fc": 32,
        "temperature": 32,
    }


def test_a_rate_for_each_tensor():
    line = line_of(Danuq(scale_init=1e-3), Granting({"b": 1, "a": 4}))
    rates = line.grant(KEY, None, {})
    assert rates == (32.0, 4.0, 1.0, 32.0, 32.0, 32.0)  # in the schema's order
    assert line.mean_bits(rates) == (12 * 4 + 10 * 1) / 22

    sent = line.send(random_vectors(), line.init(("delta",)), KEY, rates)
    found = [(packet.rate, len(packet.code)) for packet in sent.packets["delta"].values()]
    assert found == [(32, 24), (4, 6), (1, 2), (32, 8), (32, 24), (32, 4)]
    line.check(through_bytes(sent.packets), ("delta",), rates)
    with pytest.raises(MessageError, match="tensor a of 'delta': rate 4, the order was for 1"):
        line.check(sent.packets, ("delta",), (32.0, 1.0, 1.0, 32.0, 32.0, 32.0))


def test_bits_where_nothing_is_coded():
    """A model without convolutions, in float32: the published selection takes none of it."""
    schema = Schema({"fc": (2, 3), "bias": (2,)})
    assert line_of(Float32(), Granting({}), schema=schema).mean_bits((32.0, 32.0)) == 32.0


def test_the_policy_sees_sizes_and_states_of_what_is_coded():
    seen = {}

    class Recording(BitPolicy):
        def __call__(self, request):
            seen.update(
                key=request.key,
                channel=request.channel,
                sizes=dict(request.sizes),
                shared=dict(request.shared),
                seconds=request.seconds_before_upload,
                reply=request.upload_bytes(1),
            )
            return 1

    line = line_of(Danuq(scale_init=0.5), Recording())
    vectors = ("delta", "control")
    assert line.grant(KEY, None, line.init(vectors), vectors, 2.5) == (1.0,)
    half = torch.tensor([0.5])
    assert seen == {
        "key": KEY,
        "channel": None,
        "sizes": {"a": 12, "b": 10},
        "shared": {"a": half, "b": half},
        "seconds": 2.5,
        "reply": line.reply_bytes(1, vectors),
    }


@pytest.mark.parametrize("codec", [Danuq(scale_init=1e-3), Danuq(scale_per="channel"), Float32()])
@pytest.mark.parametrize("vectors", [("delta",), ("delta", "control")])
def test_what_a_tensor_takes_of_a_reply(codec, vectors):
    """A policy may add tensors up one by one: it comes to what the whole reply takes."""
    asked = []

    class Recording(BitPolicy):
        def __call__(self, request):
            asked.append(request)
            return codec.rates.listed[0]

    line = line_of(codec, Recording(), select="all")
    line.grant(KEY, None, line.init(vectors), vectors)
    (request,) = asked
    narrow = dict.fromkeys(request.sizes, codec.rates.listed[0])
    for name, rate in itertools.product(request.sizes, codec.rates.listed):
        more = request.upload_bytes({**narrow, name: rate}) - request.upload_bytes(narrow)
        least = request.tensor_bytes(name, narrow[name])
        assert more == request.tensor_bytes(name, rate) - least
        assert least % len(vectors) == 0


def test_a_client_that_is_granted_nothing_sits_out():
    assert line_of(Danuq(scale_init=1e-3), Granting(None)).grant(KEY, None, {}) is None


@pytest.mark.parametrize("answer", [3, {"a": 4, "b": 3}])
def test_a_granted_rate_that_the_codec_lacks(answer):
    with pytest.raises(ConfigError, match=r"danuq has no 3-bit rate; it offers 1, 2, 4$"):
        line_of(Danuq(scale_init=1e-3), Granting(answer)).grant(KEY, None, {})


@pytest.mark.parametrize(
    ("answer", "odd"), [({"a": 4}, "b"), ({"a": 4, "b": 4, "stem": 4}, "stem"), ({}, "a, b")]
)
def test_a_rate_for_each_tensor_names_exactly_the_coded_ones(answer, odd):
    with pytest.raises(ConfigError, match=f"these differ: {odd}$"):
        line_of(Danuq(scale_init=1e-3), Granting(answer)).grant(KEY, None, {})


@pytest.mark.parametrize("answer", [0.3, {"a": 0.3, "b": 1.7}])
def test_a_fractional_rate_is_the_same_at_both_ends(answer):
    """A rate travels as float32: server and client must not disagree about the float64 it was."""
    line = line_of(Fractional(), Granting(answer))
    rates = line.grant(KEY, None, {})
    order = decode(encode(Message(Kind.ORDER, KEY, RUN, rates=rates), SCHEMA), SCHEMA, Kind.ORDER)
    assert order.rates == rates
    sent = line.send(random_vectors(), {}, KEY, order.rates)
    line.check(through_bytes(sent.packets), ("delta",), rates)


# Bytes


# Codes, one float32 scale for each of the 19 coded tensors, the rest in float32.
UPLINK_BYTES = {
    10: {32: 44_695_848, 4: 5_644_660, 2: 2_855_284, 1: 1_460_596},
    100: {32: 44_880_528, 4: 5_829_340, 2: 3_039_964, 1: 1_645_276},
    200: {32: 45_085_728, 4: 6_034_540, 2: 3_245_164, 1: 1_850_476},
}


@pytest.mark.parametrize("classes", UPLINK_BYTES)
@pytest.mark.parametrize("bits", [32, 4, 2, 1])
def test_uplink_bytes_of_resnet18_are_the_worked_ones_plus_a_stated_header(classes, bits):
    schema = resnet18_schema(classes)
    parameters = sum(schema.sizes.values())
    coded = 11_157_504
    table = UPLINK_BYTES[classes][bits]
    if bits == 32:
        assert table == 4 * parameters
        line = line_of(Float32(), schema=schema)
    else:
        # Every coded tensor is a multiple of 8 long, so codes fill whole bytes.
        assert table == coded * bits // 8 + 4 * 19 + 4 * (parameters - coded)
        line = line_of(Danuq(scale_init=1e-3), bits, schema=schema)

    update = {name: torch.tensor(1e-3).expand(shape) for name, shape in schema.shapes.items()}
    rates = line.grant(KEY, None, {})
    sent = line.send({"delta": update}, line.init(("delta",)), KEY, rates)
    metrics = dict.fromkeys(REPLY_METRICS, 1.0)
    reply = Message(Kind.REPLY, KEY, RUN, metrics=metrics, packets=sent.packets)
    # 148 header, 16 checksum, five metrics of 1 + 8 and 41 letters, "delta" 1 + 5 and its count 4,
    # 18 for each of 62 tensors: 1,376.
    overhead = HEADER_BYTES + CHECKSUM_BYTES + (5 * 9 + 41) + (1 + 5 + 4) + ENTRY_BYTES * 62
    assert overhead == 1_376
    assert len(encode(reply, schema)) == table + overhead
    assert line.reply_bytes(bits, ("delta",)) == table + overhead
    assert float32_bytes(reply, schema) == UPLINK_BYTES[classes][32] + overhead


def test_reply_bytes_with_a_rate_for_each_tensor():
    """And several vectors: what a policy asks before it grants is what the reply then has."""
    granted = {"a": 4, "b": 1}
    line = line_of(Danuq(scale_init=1e-3), Granting(granted))
    vectors = random_vectors(("delta", "control"))
    rates = line.grant(KEY, None, {}, tuple(vectors))
    sent = line.send(vectors, line.init(tuple(vectors)), KEY, rates)
    metrics = dict.fromkeys(REPLY_METRICS, 1.0)
    reply = Message(Kind.REPLY, KEY, RUN, metrics=metrics, packets=sent.packets)
    assert line.reply_bytes(granted, tuple(vectors)) == len(encode(reply, SCHEMA))


def test_a_spread_grants_one_rate_and_codes_each_tensor_at_its_own():
    """By hand: 24 R + 6 S = 30 and S = R + 1 for tensors of 24 and 6 elements at 1 bit."""
    schema = Schema({"stem": (1, 1, 1), "a": (2, 4, 3), "b": (2, 1, 3), "norm": (2,)})
    line = Line(Link(Fractional(), Fixed(1), spread="tensors"), schema)
    granted = line.grant(KEY, None, {})
    assert granted == (1.0,)
    assert line.mean_bits(granted) == 1
    vectors = {"delta": {name: torch.ones(shape) for name, shape in schema.shapes.items()}}
    packets = line.send(vectors, {}, KEY, granted).packets
    rates = {name: packet.rate for name, packet in packets["delta"].items()}
    assert rates == {"stem": 32, "a": pytest.approx(0.8), "b": pytest.approx(1.8), "norm": 32}
    with pytest.raises(MessageError, match="rate"):
        line.check(packets, ("delta",), (0.9,))


def test_a_spread_takes_no_more_bytes_than_were_granted():
    shapes = {"stem": (4, 1, 3), "a": (16, 16, 9), "b": (64, 32, 9), "fc": (10, 64)}
    schema = Schema(shapes)
    vectors = {"delta": random_params(torch.Generator().manual_seed(0), schema)}
    lengths = {}
    for spread in ("elements", "tensors"):
        line = Line(Link(CODECS["ecq"](), Fixed(0.5), spread=spread), schema)
        granted = line.grant(KEY, None, {})
        sent = line.send(vectors, {}, KEY, granted)
        line.check(sent.packets, ("delta",), granted)
        metrics = dict.fromkeys(REPLY_METRICS, 1.0)
        reply = Message(Kind.REPLY, KEY, RUN, metrics=metrics, packets=sent.packets)
        lengths[spread] = len(encode(reply, schema))
        assert lengths[spread] <= line.reply_bytes(0.5, ("delta",))
    assert lengths["tensors"] == pytest.approx(lengths["elements"], abs=16)


# What arrives


LINKS = [
    pytest.param(Link(cls(), Fixed(rate), select), id=f"{name}-{rate}-{select}")
    for name, cls in CODECS.items()
    for rate in cls().rates.listed
    for select in SELECTS
]


@pytest.mark.parametrize("link", LINKS)
def test_what_arrives_is_what_the_codec_decodes(link):
    line = Line(link, SCHEMA)
    vectors = random_vectors(("delta", "control"))
    shared = line.init(tuple(vectors))
    rates = line.grant(KEY, None, {})
    sent = line.send(vectors, shared, KEY, rates)
    arrived = through_bytes(sent.packets)
    assert arrived == sent.packets
    line.check(arrived, ("delta", "control"), rates)

    received = line.receive(arrived, shared, KEY)
    assert list(received) == ["delta", "control"]
    for vector, tensors in received.items():
        assert list(tensors) == list(SCHEMA.names)
        for name, x in tensors.items():
            assert tuple(x.shape) == SCHEMA.shapes[name]
            codec = link.codec if name in line.coded else link.rest
            packet = sent.packets[vector][name]
            assert packet.codec == codec.wire_id
            if name not in line.coded:
                assert torch.equal(x, vectors[vector][name])
            elif codec.wire_id == Danuq.wire_id:  # nothing random in it
                state = codec.init(x.numel())
                again = codec.encode(vectors[vector][name].flatten(), state, packet.rate, seed=0)
                assert torch.equal(x.flatten(), codec.decode(again, state, seed=0))


@pytest.mark.parametrize("link", LINKS)
def test_accumulate_adds_the_weighted_vectors(link):
    line = Line(link, SCHEMA)
    vectors = random_vectors(("delta", "control"))
    shared = line.init(tuple(vectors))
    packets = line.send(vectors, shared, KEY, line.grant(KEY, None, {})).packets
    received = line.receive(packets, shared, KEY)
    ones = {name: torch.ones(shape) for name, shape in SCHEMA.shapes.items()}
    out = {vector: {name: x.clone() for name, x in ones.items()} for vector in vectors}
    line.accumulate(packets, shared, KEY, out, 40.0)
    line.accumulate(packets, shared, KEY, out, 2.5)
    for vector, tensors in received.items():
        for name, x in tensors.items():
            torch.testing.assert_close(out[vector][name], 1 + 42.5 * x)


@pytest.mark.parametrize("link", LINKS)
def test_sums_have_the_bits_of_one_tensor_after_the_other(link):
    line = Line(link, SCHEMA)
    vectors = random_vectors(("delta",))
    shared = line.init(("delta",))
    plain = {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}
    out = {"delta": {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}}
    sums = Sums(line, out)
    for client, weight in enumerate((0.3, 40.0, 7.1)):
        key = KEY._replace(client=client)
        packets = line.send(vectors, shared, key, line.grant(key, None, {})).packets
        sums.add(packets, shared, key, weight)
        # One rounding for the product, one for the sum, in the order of the clients.
        for name, x in line.receive(packets, shared, key)["delta"].items():
            plain[name] += x * weight
    sums.settle()
    for name, x in plain.items():
        assert torch.equal(out["delta"][name], x)


def test_sending_changes_nothing_and_takes_other_types():
    line = line_of(Danuq(scale_init=1e-3))
    vectors = random_vectors()
    before = {name: x.clone() for name, x in vectors["delta"].items()}
    shared = line.init(("delta",))
    sent = line.send(vectors, shared, KEY, (4.0,))
    assert all(torch.equal(x, before[name]) for name, x in vectors["delta"].items())
    doubles = {name: x.double().requires_grad_() for name, x in before.items()}
    assert line.send({"delta": doubles}, shared, KEY, (4.0,)) == sent


# The relative error


ONE = Schema({"w": (4,), "rest": (1,)})


def test_relative_error_by_hand():
    """Squared error over squared norm, both over all tensors: what travels exactly counts too."""
    schema = Schema({"w": (2, 2), "rest": (1,)})
    line = line_of(Danuq(scale_init=1e-3), 1, "weights", schema)
    update = {
        "w": torch.tensor([[0.0012, -0.0021], [0.0002, 0.0030]]),
        "rest": torch.tensor([0.002]),
    }
    sent = line.send({"delta": update}, line.init(("delta",)), KEY, (1.0,))
    level = 0.7979e-3  # codes [1, 0, 1, 1]
    lost = (
        (0.0012 - level) ** 2
        + (-0.0021 + level) ** 2
        + (0.0002 - level) ** 2
        + (0.0030 - level) ** 2
    )
    energy = 0.0012**2 + 0.0021**2 + 0.0002**2 + 0.0030**2 + 0.002**2
    assert sent.error == pytest.approx(lost / energy, rel=1e-6)


def test_relative_error_of_exact_and_of_zero_updates():
    assert Line(Link(), SCHEMA).send(random_vectors(), {}, KEY, (32.0,)).error == 0.0
    zeros = {"delta": {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}}
    line = line_of(Danuq(scale_init=1e-3), 1)
    assert line.send(zeros, line.init(("delta",)), KEY, (1.0,)).error == 0.0


@pytest.mark.parametrize("size", [1e-30, 1e-15, 1e19])
def test_an_honest_update_of_any_size_has_an_error_that_arrives(size):
    """Far below the shared scale the ratio leaves the format's range; far above it float32 squares
    overflow.
    """
    line = line_of(Danuq(scale_init=1e-3), 1, "all", ONE)
    update = {"delta": {"w": torch.full((4,), size), "rest": torch.full((1,), size)}}
    sent = line.send(update, line.init(("delta",)), KEY, (1.0,))
    assert 0 < sent.error <= 1e20
    reply = Message(Kind.REPLY, KEY, RUN, error=sent.error, packets=sent.packets)
    assert decode(encode(reply, ONE), ONE).error == sent.error


# What must not be sent, and what must not be let in


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["stem", "a", "temperature"])
def test_an_update_that_is_not_finite_names_its_origin(name, value):
    line = line_of(Danuq(scale_init=1e-3))
    vectors = random_vectors()
    vectors["delta"][name].view(-1)[-1] = value
    with pytest.raises(UpdateError, match=f"^delta {name}: .* not finite .*; lower the"):
        line.send(vectors, line.init(("delta",)), KEY, (4.0,))


def packed(*values):
    return torch.tensor(values, dtype=torch.float32).numpy().tobytes()


@pytest.mark.parametrize(
    ("name", "damage", "text"),
    [
        ("a", {"codec": 0}, "codec id 0, this link uses 1"),
        ("a", {"codec": 255}, "codec id 255, this link uses 1"),
        ("norm", {"codec": 1}, "codec id 1, this link uses 0"),
        ("a", {"rate": 2.0}, "rate 2, the order was for 4"),
        ("a", {"rate": 3.0}, "rate 3, the order was for 4"),
        ("norm", {"rate": 16.0}, "rate 16, the order was for 32"),
        ("a", {"code": bytes(5)}, "code of 5 bytes, 4 bits make 6"),
        ("a", {"code": bytes(7)}, "code of 7 bytes, 4 bits make 6"),
        ("a", {"code": b""}, "code of 0 bytes, 4 bits make 6"),
        ("norm", {"code": bytes(9)}, "code of 9 bytes, 32 bits make 8"),
        ("a", {"side": ()}, "0 side values, such a packet has 1"),
        ("a", {"side": (1.0, 1.0)}, "2 side values, such a packet has 1"),
        ("norm", {"side": (1.0,)}, "1 side values, such a packet has 0"),
        ("norm", {"code": packed(1, math.nan)}, "carries nan; values must be finite"),
        ("norm", {"code": packed(math.inf, 1)}, "carries inf; values must be finite"),
        ("norm", {"code": packed(1, -math.inf)}, "carries inf; values must be finite"),
        ("norm", {"code": packed(1e21, 1)}, "values must be finite and at most 1e"),
    ],
)
def test_packets_that_this_line_would_not_have_sent(name, damage, text):
    line = line_of(Danuq(scale_init=1e-3))
    packets = line.send(random_vectors(), line.init(("delta",)), KEY, (4.0,)).packets
    packets["delta"][name] = packets["delta"][name]._replace(**damage)
    with pytest.raises(MessageError, match=f"tensor {name} of 'delta': .*{text}"):
        line.check(through_bytes(packets), ("delta",), (4.0,))


@pytest.mark.parametrize(
    ("bits", "size", "last", "spare"),
    # 10 bits, 20 bits and 36 bits: all but `spare` of the last byte
    [(1, 10, 0b0000_0100, 6), (2, 10, 0b0001_0000, 4), (4, 9, 0b0001_0000, 4)],
)
def test_padding_must_be_clean(bits, size, last, spare):
    schema = Schema({"w": (size,)})
    line = line_of(Danuq(scale_init=1e-3), bits, "all", schema)
    vectors = random_vectors(schema=schema)
    packets = line.send(vectors, line.init(("delta",)), KEY, (bits,)).packets
    line.check(packets, ("delta",), (bits,))

    packet = packets["delta"]["w"]
    dirty = packet.code[:-1] + bytes([packet.code[-1] | last])
    packets["delta"]["w"] = packet._replace(code=dirty)
    with pytest.raises(MessageError, match=f"tensor w of 'delta': the {spare} bits after"):
        line.check(through_bytes(packets, schema), ("delta",), (bits,))


@pytest.mark.parametrize(
    "arrived", [(), ("control",), ("delta", "control", "more"), ("control", "delta")]
)
def test_vectors_that_were_not_asked_for(arrived):
    line = Line(Link(), SCHEMA)
    packets = line.send(random_vectors(arrived), {}, KEY, (32.0,)).packets
    with pytest.raises(
        MessageError, match=r"message carries \[.*\], expected \['delta', 'control'\]"
    ):
        line.check(through_bytes(packets), ("delta", "control"), (32.0,))


def test_a_variable_length_code_may_be_shorter_but_not_longer():
    schema = Schema({"w": (3,)})
    line = line_of(Fractional(), 1, "all", schema)
    packet = line.send(random_vectors(schema=schema), {}, KEY, (1.0,)).packets["delta"]["w"]

    def check(code):
        line.check({"delta": {"w": packet._replace(code=code)}}, ("delta",), (1.0,))

    with pytest.raises(MessageError, match="tensor w of 'delta': code of 13 bytes, 1 bits make 12"):
        check(bytes(13))
    # The length passes; the codec's own check speaks.
    with pytest.raises(MessageError, match="3 float32 values take 12 bytes"):
        check(bytes(8))


# Shared state


def test_init_starts_each_coded_tensor_of_each_vector():
    shared = line_of(Danuq(scale_init=0.5)).init(("delta", "control"))
    assert list(shared) == ["delta", "control"]
    for tensors in shared.values():
        assert {name: state.tolist() for name, state in tensors.items()} == {"a": [0.5], "b": [0.5]}
    assert Line(Link(), SCHEMA).init(("delta",)) == {}


def test_fold_moves_each_scale_by_its_own_side_values():
    line = line_of(Danuq(scale_init=1.0))
    shared = line.init(("delta", "control"))
    sides = {"delta": {"a": [(2.0,), (4.0,), (0.0,)], "norm": [(), (), ()]}}
    folded = line.fold(shared, sides)
    assert list(folded) == ["delta", "control"]
    assert list(folded["delta"]) == ["a", "b"]
    # The client without spread is left out.
    assert folded["delta"]["a"].item() == pytest.approx(0.9 * 1.0 + 0.1 * 3.0)
    assert folded["delta"]["b"].item() == folded["control"]["a"].item() == 1.0  # nobody sent any
    assert shared["delta"]["a"].item() == 1.0
    assert line.fold(shared, {}) == shared


def state(*values):
    return torch.tensor(values)


@pytest.mark.parametrize(
    "states",
    [
        {},
        {"delta": {"a": state(1.0)}},
        {"delta": {"a": state(1.0), "b": state(1.0), "norm": state(1.0)}},
        {"delta": {"a": state(1.0, 1.0), "b": state(1.0)}},
        {"delta": {"a": state(1.0), "b": state()}},
        {"control": {"a": state(1.0), "b": state(1.0)}},
        {
            "delta": {"a": state(1.0), "b": state(1.0)},
            "control": {"a": state(1.0), "b": state(1.0)},
        },
    ],
)
def test_codec_state_of_another_codec_or_model_is_refused(states):
    line = line_of(Danuq(scale_init=1e-3))
    line.check_states({"delta": {"a": state(1.0), "b": state(1.0)}}, ("delta",))
    with pytest.raises(MessageError, match="not that of this run's codec and tensors"):
        line.check_states(states, ("delta",))


def test_a_scale_of_0_is_only_that_of_a_codec_that_calibrates_itself():
    zero = {"delta": {"a": state(1.0), "b": state(0.0)}}
    with pytest.raises(MessageError, match="codec state has a scale of 0"):
        line_of(Danuq(scale_init=1e-3)).check_states(zero, ("delta",))
    line_of(Danuq(scale_init="calibrate")).check_states(zero, ("delta",))


# The golden round


GOLDEN = Schema({"w": (4,)})
START = torch.tensor([0.5, -0.3, 0.2, 0.0], dtype=torch.float64)
DELTAS = [
    torch.tensor([0.0012, -0.0021, 0.0002, 0.0030]),
    torch.tensor([-0.0008, 0.0004, -0.0015, 0.0006]),
]


def golden_round(bits, codec):
    """Two clients of weight 1 through real messages: their mean update, the new shared scale."""
    total = {"delta": {"w": torch.zeros(4)}}
    sides = []
    shared = line_of(codec, 1, "all", GOLDEN).init(("delta",))
    for client, (rate, delta) in enumerate(zip(bits, DELTAS, strict=True)):
        line = line_of(codec, rate, "all", GOLDEN)
        key = Key(0, 1, client)
        rates = line.grant(key, None, shared)
        sent = line.send({"delta": {"w": delta}}, shared, key, rates)
        message = Message(Kind.REPLY, key, RUN, weight=1.0, packets=sent.packets)
        reply = decode(encode(message, GOLDEN), GOLDEN)
        line.check(reply.packets, ("delta",), rates)
        line.accumulate(reply.packets, shared, key, total, reply.weight)
        sides.append(reply.packets["delta"]["w"].side)
    folded = line.fold(shared, {"delta": {"w": sides}})
    return total["delta"]["w"] / 2, folded["delta"]["w"].item()


def reaches(mean, expected):
    """The server's new weights; the update itself is held to 1e-5 too, which next to a weight of
    0.5 would vanish.
    """
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(START + mean.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), expected - START, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_golden_round(bits):
    worked = WORKED[f"fedwsq.B{bits}"]
    mean, scale = golden_round((bits, bits), Danuq(scale_init=1e-3))
    reaches(mean, worked["server_code"])
    assert scale == pytest.approx(worked["s_g_new"], rel=1e-5)

    mean, scale = golden_round((bits, bits), Danuq(dequantize="own", scale_init=1e-3))
    reaches(mean, worked["server_alg1_si_mean"])
    assert scale == pytest.approx(worked["s_g_new"], rel=1e-5)


def test_the_golden_round_with_mixed_bits():
    mean, scale = golden_round((4, 1), Danuq(scale_init=1e-3))
    reaches(mean, WORKED["fedwsq.mixed_a4_b1"])
    assert scale == pytest.approx(0.00105622658, rel=1e-5)
