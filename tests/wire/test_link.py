"""Which tensors are coded, what that costs in bytes, and that what arrives is what the codec made of it."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fedwsq.codecs import CODECS, Danuq, Fixed, Float32
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Key
from fedwsq.models import MODELS, resnet18
from fedwsq.wire import Kind, Link, Message, Schema, decode, encode
from fedwsq.wire.link import SELECTS
from fedwsq.wire.message import (
    CHECKSUM_BYTES,
    ENTRY_BYTES,
    HEADER_BYTES,
    REPLY_METRICS,
    float32_bytes,
)

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
class Granting:
    """A bit policy that answers with what it was given."""

    answer: object

    def __call__(self, ask):
        return self.answer


@dataclass(frozen=True)
class Fractional(Float32):
    """Stands for an entropy-coded codec: any rate of an interval, code no longer than `max_bytes`."""

    wire_id: ClassVar[int] = 200

    @property
    def rates(self):
        return (0.1, 8.0)

    def encode(self, x, shared, rate, seed):
        return Float32().encode(x, shared, 32, seed)._replace(rate=rate)


def schema_of(model):
    return Schema({name: tuple(p.shape) for name, p in model.named_parameters()})


def resnet18_schema(classes):
    with torch.device("meta"):
        return schema_of(resnet18(classes=classes))


def random_vectors(names=("delta",), schema=SCHEMA):
    generator = torch.Generator().manual_seed(0)
    return {
        vector: {
            name: torch.randn(shape, generator=generator) * 2e-3
            for name, shape in schema.shapes.items()
        }
        for vector in names
    }


def through_bytes(packets, schema=SCHEMA):
    message = Message(Kind.REPLY, KEY, RUN, packets=packets)
    return decode(encode(message, schema), schema, Kind.REPLY, RUN).packets


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
    coded = Link(Danuq(), Fixed(4), select).coded(schema)
    assert len(coded) == tensors
    assert sum(schema.sizes[name] for name in coded) == parameters


def test_published_takes_the_blocks_convolutions_and_shortcuts():
    schema = resnet18_schema(10)
    coded = Link(Danuq(), Fixed(4)).coded(schema)
    left = [shape for name, shape in schema.shapes.items() if name not in coded and len(shape) == 4]
    assert left == [(64, 3, 3, 3)]  # the stem
    kernels = [schema.shapes[name][2:] for name in coded]
    assert (kernels.count((3, 3)), kernels.count((1, 1))) == (16, 3)


@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_select_takes_something_of_every_model(model, select):
    schema = schema_of(MODELS[model]())
    coded = Link(Danuq(), Fixed(4), select).coded(schema)
    assert coded
    assert coded <= set(schema.names)


@pytest.mark.parametrize(
    "shapes", [{"weight": (3, 2), "bias": (3,)}, {"conv": (2, 1, 3), "fc": (3, 2)}, {}]
)
def test_a_select_that_takes_nothing_is_an_error(shapes):
    schema = Schema(shapes)
    link = Link(Danuq(), Fixed(4))
    for use in (
        lambda: link.coded(schema),
        lambda: link.init(schema, ("delta",)),
        lambda: link.rates(KEY, None, schema, {}),
    ):
        with pytest.raises(
            ConfigError, match=r'select = "published" chooses no tensor .* use "weights" or "all"'
        ):
            use()
    assert Link().coded(schema) == frozenset()  # float32 codes nothing anyway


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Link(Danuq(), Fixed(3)), r"danuq has no 3-bit rate; it offers 1, 2, 4$"),
        (lambda: Link(Danuq()), r"danuq has no 32-bit rate; it offers 1, 2, 4$"),
        (
            lambda: Link(Danuq("optimal"), Fixed(9)),
            r"danuq has no 9-bit rate; it offers 1, 2, 3, 4, 5, 6, 7, 8$",
        ),
        (
            lambda: Link(Fractional(), Fixed(9)),
            r"fractional has no 9-bit rate; it offers 0\.1 to 8$",
        ),
        (
            lambda: Link(Danuq(), Fixed(4), "convolutions"),
            r"'convolutions'; it can be published, weights, all$",
        ),
        (lambda: Link(Danuq(), Fixed(4), rest=Danuq()), r"rest needs a codec with a single rate"),
    ],
)
def test_links_that_cannot_be(build, text):
    with pytest.raises(ConfigError, match=text):
        build()


# Rates


def test_a_codec_with_a_single_rate_leaves_nothing_to_decide():
    link = Link(Float32(), Fixed(4))
    assert link.bits == Fixed(32)
    assert link == Link()
    assert link.rates(KEY, None, SCHEMA, {}) == (32.0,)


def test_one_rate_for_all_tensors():
    link = Link(Danuq(), Fixed(2))
    rates = link.rates(KEY, None, SCHEMA, {})
    assert rates == (2.0,)
    assert link.mean_bits(rates, SCHEMA) == 2.0
    packets = link.send(
        random_vectors(), link.init(SCHEMA, ("delta",)), KEY, rates, SCHEMA
    ).packets["delta"]
    assert {name: packet.rate for name, packet in packets.items()} == {
        "stem": 32, "a": 2, "b": 2, "norm": 32, "fc": 32, "temperature": 32
    }  # fmt: skip


def test_a_rate_for_each_tensor():
    link = Link(Danuq(), Granting({"b": 1, "a": 4}))
    rates = link.rates(KEY, None, SCHEMA, {})
    assert rates == (32.0, 4.0, 1.0, 32.0, 32.0, 32.0)  # in the schema's order
    assert link.mean_bits(rates, SCHEMA) == (12 * 4 + 10 * 1) / 22
    sent = link.send(random_vectors(), link.init(SCHEMA, ("delta",)), KEY, rates, SCHEMA)
    assert [(p.rate, len(p.code)) for p in sent.packets["delta"].values()] == [
        (32, 24), (4, 6), (1, 2), (32, 8), (32, 24), (32, 4)
    ]  # fmt: skip
    link.check(through_bytes(sent.packets), ("delta",), rates, SCHEMA)
    with pytest.raises(MessageError, match="tensor a of 'delta': rate 4, the order was for 1"):
        link.check(sent.packets, ("delta",), (32.0, 1.0, 1.0, 32.0, 32.0, 32.0), SCHEMA)


def test_bits_where_nothing_is_coded():
    """A model without convolutions, in float32: the published selection takes none of it."""
    schema = Schema({"fc": (2, 3), "bias": (2,)})
    assert Link(Float32(), Granting({})).mean_bits((32.0, 32.0), schema) == 32.0


def test_the_policy_sees_sizes_and_states_of_what_is_coded():
    seen = {}

    def policy(ask):
        seen.update(
            key=ask.key, channel=ask.channel, sizes=dict(ask.sizes), shared=dict(ask.shared)
        )
        return 1

    link = Link(Danuq(scale_init=0.5), policy)
    assert link.rates(KEY, None, SCHEMA, link.init(SCHEMA, ("delta", "control"))) == (1.0,)
    half = torch.tensor([0.5])
    assert seen == {
        "key": KEY,
        "channel": None,
        "sizes": {"a": 12, "b": 10},
        "shared": {"a": half, "b": half},
    }


def test_a_client_that_is_granted_nothing_sits_out():
    assert Link(Danuq(), Granting(None)).rates(KEY, None, SCHEMA, {}) is None


@pytest.mark.parametrize("answer", [3, {"a": 4, "b": 3}])
def test_a_granted_rate_that_the_codec_lacks(answer):
    with pytest.raises(ConfigError, match=r"danuq has no 3-bit rate; it offers 1, 2, 4$"):
        Link(Danuq(), Granting(answer)).rates(KEY, None, SCHEMA, {})


@pytest.mark.parametrize(
    ("answer", "odd"), [({"a": 4}, "b"), ({"a": 4, "b": 4, "stem": 4}, "stem"), ({}, "a, b")]
)
def test_a_rate_for_each_tensor_names_exactly_the_coded_ones(answer, odd):
    with pytest.raises(ConfigError, match=f"these differ: {odd}$"):
        Link(Danuq(), Granting(answer)).rates(KEY, None, SCHEMA, {})


@pytest.mark.parametrize("answer", [0.3, {"a": 0.3, "b": 1.7}])
def test_a_fractional_rate_is_the_same_at_both_ends(answer):
    """A rate travels as float32: server and client must not disagree about the float64 it was."""
    link = Link(Fractional(), Granting(answer))
    rates = link.rates(KEY, None, SCHEMA, {})
    order = decode(encode(Message(Kind.ORDER, KEY, RUN, rates=rates), SCHEMA), SCHEMA, Kind.ORDER)
    assert order.rates == rates
    sent = link.send(random_vectors(), {}, KEY, order.rates, SCHEMA)
    link.check(through_bytes(sent.packets), ("delta",), rates, SCHEMA)


# Bytes


UPLINK_BYTES = {  # codes, one float32 scale for each of the 19 coded tensors, the rest in float32
    10: {32: 44_695_848, 4: 5_644_660, 2: 2_855_284, 1: 1_460_596},
    100: {32: 44_880_528, 4: 5_829_340, 2: 3_039_964, 1: 1_645_276},
    200: {32: 45_085_728, 4: 6_034_540, 2: 3_245_164, 1: 1_850_476},
}


@pytest.mark.parametrize(
    ("classes", "bits"), [(classes, bits) for classes in UPLINK_BYTES for bits in (32, 4, 2, 1)]
)
def test_uplink_bytes_of_resnet18_are_the_worked_ones_plus_a_stated_header(classes, bits):
    schema = resnet18_schema(classes)
    parameters, coded = sum(schema.sizes.values()), 11_157_504
    table = UPLINK_BYTES[classes][bits]
    # Every coded tensor is a multiple of 8 long, so codes fill whole bytes: 11,157,504 B / 8.
    assert table == (
        4 * parameters if bits == 32 else coded * bits // 8 + 4 * 19 + 4 * (parameters - coded)
    )

    link = Link(Float32()) if bits == 32 else Link(Danuq(), Fixed(bits))
    update = {name: torch.tensor(1e-3).expand(shape) for name, shape in schema.shapes.items()}
    rates = link.rates(KEY, None, schema, {})
    sent = link.send({"delta": update}, link.init(schema, ("delta",)), KEY, rates, schema)
    reply = Message(
        Kind.REPLY, KEY, RUN, metrics=dict.fromkeys(REPLY_METRICS, 1.0), packets=sent.packets
    )
    # 128 header, 16 checksum, five metrics of 1 + 8 and 41 letters, "delta" 1 + 5 and its count 4, 18 for each of 62
    # tensors: 1,356.
    overhead = HEADER_BYTES + CHECKSUM_BYTES + (5 * 9 + 41) + (1 + 5 + 4) + ENTRY_BYTES * 62
    assert overhead == 1_356
    assert len(encode(reply, schema)) == table + overhead
    assert link.reply_bytes(bits, ("delta",), schema) == table + overhead
    assert float32_bytes(reply, schema) == UPLINK_BYTES[classes][32] + overhead


# What arrives


LINKS = [
    pytest.param(Link(cls(), Fixed(rate), select), id=f"{name}-{rate}-{select}")
    for name, cls in CODECS.items()
    for rate in (sorted(cls().rates) if isinstance(cls().rates, frozenset) else cls().rates)
    for select in SELECTS
]


@pytest.mark.parametrize("link", LINKS)
def test_what_arrives_is_what_the_codec_decodes(link):
    vectors = random_vectors(("delta", "control"))
    shared, rates = link.init(SCHEMA, tuple(vectors)), link.rates(KEY, None, SCHEMA, {})
    sent = link.send(vectors, shared, KEY, rates, SCHEMA)
    arrived = through_bytes(sent.packets)
    assert arrived == sent.packets
    link.check(arrived, ("delta", "control"), rates, SCHEMA)
    received = link.receive(arrived, shared, KEY, SCHEMA)
    assert list(received) == ["delta", "control"]
    for vector, tensors in received.items():
        assert list(tensors) == list(SCHEMA.names)
        for name, x in tensors.items():
            assert tuple(x.shape) == SCHEMA.shapes[name]
            codec = link.codec if name in link.coded(SCHEMA) else link.rest
            packet = sent.packets[vector][name]
            assert packet.codec == codec.wire_id
            if name not in link.coded(SCHEMA):
                assert torch.equal(x, vectors[vector][name])
            elif codec.wire_id == Danuq.wire_id:  # nothing random in it
                again = codec.encode(
                    vectors[vector][name].flatten(), codec.init(x.numel()), packet.rate, seed=0
                )
                assert torch.equal(x.flatten(), codec.decode(again, codec.init(x.numel()), seed=0))


@pytest.mark.parametrize("link", LINKS)
def test_accumulate_adds_the_weighted_vectors(link):
    vectors = random_vectors(("delta", "control"))
    shared = link.init(SCHEMA, tuple(vectors))
    packets = link.send(vectors, shared, KEY, link.rates(KEY, None, SCHEMA, {}), SCHEMA).packets
    received = link.receive(packets, shared, KEY, SCHEMA)
    out = {
        vector: {name: torch.ones(shape) for name, shape in SCHEMA.shapes.items()}
        for vector in vectors
    }
    link.accumulate(packets, shared, KEY, out, 40.0, SCHEMA)
    link.accumulate(packets, shared, KEY, out, 2.5, SCHEMA)
    for vector, tensors in received.items():
        for name, x in tensors.items():
            torch.testing.assert_close(out[vector][name], 1 + 42.5 * x)


def test_sending_changes_nothing_and_takes_other_types():
    link = Link(Danuq(), Fixed(4))
    vectors = random_vectors()
    before = {name: x.clone() for name, x in vectors["delta"].items()}
    shared = link.init(SCHEMA, ("delta",))
    sent = link.send(vectors, shared, KEY, (4.0,), SCHEMA)
    assert all(torch.equal(x, before[name]) for name, x in vectors["delta"].items())
    doubles = {name: x.double().requires_grad_() for name, x in before.items()}
    assert link.send({"delta": doubles}, shared, KEY, (4.0,), SCHEMA) == sent


# The relative error


ONE = Schema({"w": (4,), "rest": (1,)})


def test_relative_error_by_hand():
    """Squared error over squared norm, both over all tensors: what travels exactly counts in the norm."""
    link = Link(Danuq(), Fixed(1), "weights")
    schema = Schema({"w": (2, 2), "rest": (1,)})
    update = {
        "w": torch.tensor([[0.0012, -0.0021], [0.0002, 0.0030]]),
        "rest": torch.tensor([0.002]),
    }
    sent = link.send({"delta": update}, link.init(schema, ("delta",)), KEY, (1.0,), schema)
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
    assert Link().send(random_vectors(), {}, KEY, (32.0,), SCHEMA).error == 0.0
    zeros = {"delta": {name: torch.zeros(shape) for name, shape in SCHEMA.shapes.items()}}
    link = Link(Danuq(), Fixed(1))
    assert link.send(zeros, link.init(SCHEMA, ("delta",)), KEY, (1.0,), SCHEMA).error == 0.0


@pytest.mark.parametrize("size", [1e-30, 1e-15, 1e19])
def test_an_honest_update_of_any_size_has_an_error_that_arrives(size):
    """Far below the shared scale the ratio leaves the format's range; far above it float32 squares overflow."""
    link = Link(Danuq(), Fixed(1), "all")
    update = {"delta": {"w": torch.full((4,), size), "rest": torch.full((1,), size)}}
    sent = link.send(update, link.init(ONE, ("delta",)), KEY, (1.0,), ONE)
    assert 0 < sent.error <= 1e20
    reply = Message(Kind.REPLY, KEY, RUN, error=sent.error, packets=sent.packets)
    assert decode(encode(reply, ONE), ONE).error == sent.error


# What must not be sent, and what must not be let in


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["stem", "a", "temperature"])
def test_an_update_that_is_not_finite_names_its_origin(name, value):
    link = Link(Danuq(), Fixed(4))
    vectors = random_vectors()
    vectors["delta"][name].view(-1)[-1] = value
    with pytest.raises(UpdateError, match=f"client 12, round 3, delta {name}: .* not finite"):
        link.send(vectors, link.init(SCHEMA, ("delta",)), KEY, (4.0,), SCHEMA)


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
def test_packets_that_this_link_would_not_have_sent(name, damage, text):
    link = Link(Danuq(), Fixed(4))
    packets = link.send(
        random_vectors(), link.init(SCHEMA, ("delta",)), KEY, (4.0,), SCHEMA
    ).packets
    packets["delta"][name] = packets["delta"][name]._replace(**damage)
    with pytest.raises(MessageError, match=f"tensor {name} of 'delta': .*{text}"):
        link.check(through_bytes(packets), ("delta",), (4.0,), SCHEMA)


@pytest.mark.parametrize(
    ("bits", "last", "spare"), [(1, 0b0000_0100, 6), (2, 0b0001_0000, 4), (4, 0b0001_0000, 4)]
)
def test_padding_must_be_clean(bits, last, spare):
    schema = Schema(
        {"w": (10 if bits < 4 else 9,)}
    )  # 10 bits, 20 bits and 36 bits: all but `spare` of the last byte
    link = Link(Danuq(), Fixed(bits), "all")
    packets = link.send(
        random_vectors(schema=schema), link.init(schema, ("delta",)), KEY, (bits,), schema
    ).packets
    link.check(packets, ("delta",), (bits,), schema)
    code = packets["delta"]["w"].code
    packets["delta"]["w"] = packets["delta"]["w"]._replace(
        code=code[:-1] + bytes([code[-1] | last])
    )
    with pytest.raises(MessageError, match=f"tensor w of 'delta': the {spare} bits after"):
        link.check(through_bytes(packets, schema), ("delta",), (bits,), schema)


@pytest.mark.parametrize(
    "arrived", [(), ("control",), ("delta", "control", "more"), ("control", "delta")]
)
def test_vectors_that_were_not_asked_for(arrived):
    link = Link()
    packets = link.send(random_vectors(arrived), {}, KEY, (32.0,), SCHEMA).packets
    with pytest.raises(
        MessageError, match=r"message carries \[.*\], expected \['delta', 'control'\]"
    ):
        link.check(through_bytes(packets), ("delta", "control"), (32.0,), SCHEMA)


def test_a_variable_length_code_may_be_shorter_but_not_longer():
    link = Link(Fractional(), Fixed(1), "all")
    schema = Schema({"w": (3,)})
    packet = link.send(random_vectors(schema=schema), {}, KEY, (1.0,), schema).packets["delta"]["w"]
    with pytest.raises(MessageError, match="tensor w of 'delta': code of 13 bytes, 1 bits make 12"):
        link.check({"delta": {"w": packet._replace(code=bytes(13))}}, ("delta",), (1.0,), schema)
    with pytest.raises(
        MessageError, match="3 float32 values take 12 bytes"
    ):  # length passes; its own check speaks
        link.check({"delta": {"w": packet._replace(code=bytes(8))}}, ("delta",), (1.0,), schema)


# Shared state


def test_init_starts_each_coded_tensor_of_each_vector():
    shared = Link(Danuq(scale_init=0.5), Fixed(4)).init(SCHEMA, ("delta", "control"))
    assert list(shared) == ["delta", "control"]
    for tensors in shared.values():
        assert {name: state.tolist() for name, state in tensors.items()} == {"a": [0.5], "b": [0.5]}
    assert Link().init(SCHEMA, ("delta",)) == {}


def test_fold_moves_each_scale_by_its_own_side_values():
    link = Link(Danuq(scale_init=1.0), Fixed(4))
    shared = link.init(SCHEMA, ("delta", "control"))
    sides = {"delta": {"a": [(2.0,), (4.0,), (0.0,)], "norm": [(), (), ()]}}
    folded = link.fold(shared, sides)
    assert list(folded) == ["delta", "control"]
    assert list(folded["delta"]) == ["a", "b"]
    assert folded["delta"]["a"].item() == pytest.approx(
        0.9 * 1.0 + 0.1 * 3.0
    )  # the client without spread left out
    assert folded["delta"]["b"].item() == folded["control"]["a"].item() == 1.0  # nobody sent any
    assert shared["delta"]["a"].item() == 1.0
    assert link.fold(shared, {}) == shared


# The golden round


GOLDEN = Schema({"w": (4,)})
START = torch.tensor([0.5, -0.3, 0.2, 0.0], dtype=torch.float64)
DELTAS = [
    torch.tensor([0.0012, -0.0021, 0.0002, 0.0030]),
    torch.tensor([-0.0008, 0.0004, -0.0015, 0.0006]),
]


def golden_round(bits, codec):
    """Two clients of weight 1 through real messages: their mean update, and the new shared scale."""
    total, sides = {"delta": {"w": torch.zeros(4)}}, []
    shared = Link(codec, Fixed(1), "all").init(GOLDEN, ("delta",))
    for client, (rate, delta) in enumerate(zip(bits, DELTAS, strict=True)):
        link, key = Link(codec, Fixed(rate), "all"), Key(0, 1, client)
        rates = link.rates(key, None, GOLDEN, shared)
        sent = link.send({"delta": {"w": delta}}, shared, key, rates, GOLDEN)
        reply = decode(
            encode(Message(Kind.REPLY, key, RUN, weight=1.0, packets=sent.packets), GOLDEN), GOLDEN
        )
        link.check(reply.packets, ("delta",), rates, GOLDEN)
        link.accumulate(reply.packets, shared, key, total, reply.weight, GOLDEN)
        sides.append(reply.packets["delta"]["w"].side)
    return total["delta"]["w"] / 2, link.fold(shared, {"delta": {"w": sides}})["delta"]["w"].item()


def reaches(mean, expected):
    """The server's new weights; the update itself is held to 1e-5 too, which next to a weight of 0.5 would vanish."""
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(START + mean.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), expected - START, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_golden_round(bits):
    worked = WORKED[f"fedwsq.B{bits}"]
    mean, scale = golden_round((bits, bits), Danuq())
    reaches(mean, worked["server_code"])
    assert scale == pytest.approx(worked["s_g_new"], rel=1e-5)
    mean, scale = golden_round((bits, bits), Danuq(dequantize="own"))
    reaches(mean, worked["server_alg1_si_mean"])
    assert scale == pytest.approx(worked["s_g_new"], rel=1e-5)


def test_the_golden_round_with_mixed_bits():
    mean, scale = golden_round((4, 1), Danuq())
    reaches(mean, WORKED["fedwsq.mixed_a4_b1"])
    assert scale == pytest.approx(0.00105622658, rel=1e-5)
