"""`pack` and `unpack`: what comes back, what stays exact, what it costs, and what is refused."""

import json
import math
import struct
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from torch import nn

import fedwsq
from fedwsq.codecs import CODECS, Danuq, Ecq, Rotated
from fedwsq.codecs.base import Packet
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.parts.integers import INTEGERS, Integers
from fedwsq.parts.parcel import ELEMENTS_PER_BYTE, FREE_ELEMENTS
from fedwsq.wire import Kind, decode, kind_of
from fedwsq.wire.message import HEADER_BYTES

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# The squared error of each codec at its usual rate on N(0, 1), relative; with room for a sample.
LOSSES = {
    "danuq": 0.013,
    "danuq4": 0.02,
    "danuq8": 1e-3,
    "ecq": 0.01,
    "eden": 0.013,
    "float16": 1e-6,
    "float32": 0.0,
    "fp": 0.03,
    "nf": 0.03,
    "qsgd": 20.0,  # scaled by the norm, as published: it is unbiased, not close
    "rotated": 0.013,
    "sign": 0.4,
    "topk": 0.4,
    "uq": 0.1,
}

# A message as the first version of the format wrote it.
GOLDEN = (
    "4657535102000a007801000000000000ab2357cee28fdddc0e1513f6291003e10000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000001000000790000000774656e736f7273030000000d0100000040010000000f0000000000000074f1083e0740"
    "0005100000000000007a00e01f0000000000420000000004000000000000000000003f0e00000000410000000002"
    "0000000000000001007b22636f646563223a7b226e616d65223a22656371227d2c2262697473223a322c2274656e"
    "736f7273223a5b5b2277222c5b312c31365d2c22666c6f61743136222c747275655d2c5b2262222c5b5d2c22666c"
    "6f61743332222c66616c73655d2c5b226e222c5b325d2c22626f6f6c222c66616c73655d5d7d228150c831213c1a"
    "6c942d690985b3df"
)


def normal(*shape, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(0))


def relative_error(found, x):
    return float((found.double() - x.double()).square().sum() / x.double().square().sum())


# What comes back.


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_codec_gives_back_every_float_type(codec, dtype):
    tensors = {"w": normal(64, 33).to(dtype), "v": normal(10, 2, 3).to(dtype)}
    found = fedwsq.unpack(fedwsq.pack(tensors, codec), like=tensors)
    assert list(found) == ["w", "v"]
    for name, x in tensors.items():
        assert found[name].dtype is dtype
        assert found[name].shape == x.shape
    # float16 and bfloat16 round once more on the way out.
    assert relative_error(found["w"], tensors["w"]) <= LOSSES[codec] + 1e-5


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_and_truth_values_are_exact(dtype):
    dtype = getattr(torch, dtype)
    if dtype is torch.bool:
        x = torch.tensor([[True, False, True]])
    else:
        limits = torch.iinfo(dtype)
        x = torch.tensor([limits.min, 0, 1, limits.max], dtype=dtype)
    found = fedwsq.unpack(fedwsq.pack({"x": x, "empty": x[:0], "one": x.flatten()[0]}))
    assert found["x"].dtype is dtype
    assert torch.equal(found["x"], x)
    assert found["empty"].shape == x[:0].shape
    assert torch.equal(found["one"], x.flatten()[0])


def test_fewer_than_sixteen_elements_are_exact():
    tensors = {"small": normal(3, 5), "large": normal(4, 4)}
    found = fedwsq.unpack(fedwsq.pack(tensors, bits=1))
    assert torch.equal(found["small"], tensors["small"])
    assert not torch.equal(found["large"], tensors["large"])


def test_a_dictionary_may_be_empty_and_a_tensor_too():
    assert fedwsq.unpack(fedwsq.pack({})) == {}
    tensors = {"scalar": torch.tensor(1.5), "none": torch.empty(0, 3), "": normal(2, 2)}
    found = fedwsq.unpack(fedwsq.pack(tensors))
    assert all(torch.equal(found[name], x) for name, x in tensors.items())


def test_how_a_tensor_lies_in_memory_does_not_matter():
    x = normal(20, 30)
    data = fedwsq.pack({"x": x.clone().requires_grad_()})
    assert fedwsq.pack({"x": x.t().contiguous().t()}) == data
    assert fedwsq.pack({"x": normal(20, 60)[:, ::2]}) != data
    found = fedwsq.unpack(data)["x"]
    found += 1  # it is nobody else's memory
    assert not found.requires_grad


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "float16"])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_each_tensor_has_its_own_scale(codec, scale):
    data = fedwsq.pack({"x": normal(64, 32), "scaled": normal(64, 32, scale=scale)}, codec)
    found = fedwsq.unpack(data)
    error = relative_error(found["x"], normal(64, 32))
    scaled = relative_error(found["scaled"], normal(64, 32, scale=scale))
    assert scaled == pytest.approx(error, rel=0.2, abs=1e-12)


def test_near_the_top_of_float16_nothing_becomes_infinite():
    x = torch.full((100, 2), 60000.0)
    x[::2] *= -1
    found = fedwsq.unpack(fedwsq.pack({"x": x.half()}, "danuq", bits=4))["x"]
    assert torch.isfinite(found).all()
    assert relative_error(found, x) < 0.05


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_signs():
    tensors = {"w": normal(64, 64)}
    assert fedwsq.pack(tensors, "eden", seed=1) == fedwsq.pack(tensors, "eden", seed=1)
    one = fedwsq.pack(tensors, "eden", seed=1)
    two = fedwsq.pack(tensors, "eden", seed=2**64 - 1)
    assert not torch.equal(fedwsq.unpack(one)["w"], fedwsq.unpack(two)["w"])
    assert relative_error(fedwsq.unpack(two)["w"], tensors["w"]) < 0.013


def test_a_codec_comes_with_its_settings():
    tensors = {"w": normal(64, 64) * torch.logspace(-3, 3, 64)[:, None]}
    by_channel = Danuq(scale_per="channel", levels="lloyd-max")
    found = fedwsq.unpack(fedwsq.pack(tensors, by_channel, bits=3))
    assert relative_error(found["w"], tensors["w"]) < 0.05
    rotated = fedwsq.unpack(fedwsq.pack(tensors, Rotated(Ecq()), bits=2.5))
    assert relative_error(rotated["w"], tensors["w"]) < 0.05


def test_another_process_reads_what_this_one_wrote(tmp_path):
    (tmp_path / "data").write_bytes(fedwsq.pack({"w": normal(8, 8)}, "rotated", bits=4))
    code = "import fedwsq; print(fedwsq.unpack(open('data', 'rb').read())['w'].double().sum())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = fedwsq.unpack((tmp_path / "data").read_bytes())["w"]
    assert done.stdout.strip() == str(found.double().sum())


# What is coded, and what it costs.


def test_a_model_that_was_packed_still_works():
    """Norms lie to one side of zero, where no code for updates puts its levels: they are exact."""
    torch.manual_seed(0)
    x = torch.randn(256, 1, 8, 8)
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(32 * 36, 10))
    model(3 * x)  # so that the running statistics are those of some data
    model.eval().requires_grad_(False)
    expected = model(x)
    state = model.state_dict()
    data = fedwsq.pack(state)
    found = fedwsq.unpack(data, like=state)
    vectors = [name for name, tensor in state.items() if tensor.ndim < 2]
    assert all(torch.equal(found[name], state[name]) for name in vectors)
    model.load_state_dict(found)
    assert relative_error(model(x), expected) < 0.05
    model.load_state_dict(fedwsq.unpack(fedwsq.pack(state, select="all")))
    assert relative_error(model(x), expected) > 0.5


def test_which_tensors_are_coded():
    tensors = {"stem": normal(9, 2, 3, 3), "conv": normal(9, 2, 3, 3), "vector": normal(99)}

    def coded(select, tensors=tensors):
        found = fedwsq.unpack(fedwsq.pack(tensors, select=select))
        return [name for name, x in tensors.items() if not torch.equal(found[name], x)]

    assert coded(None) == ["stem", "conv"]
    assert coded("weights") == ["stem", "conv"]
    assert coded("published") == ["conv"]
    assert coded("all") == ["stem", "conv", "vector"]
    # Without any matrix, vectors are what there is to code; what is too small does not count.
    assert coded(None, {"vector": normal(99), "small": normal(2, 2)}) == ["vector"]


def test_the_length_is_the_code_and_little_around_it():
    sizes = {bits: len(fedwsq.pack({"w": normal(1000, 1000)}, bits=bits)) for bits in (1, 2, 4)}
    for bits, size in sizes.items():
        assert bits * 125_000 < size < bits * 125_000 + 500
    assert len(fedwsq.pack({"w": normal(1000, 1000)}, "ecq", bits=0.5)) < 62_500 + 500
    exact = {"n": torch.arange(100_000)}
    assert len(fedwsq.pack(exact)) < 800_000 + 500


@pytest.mark.parametrize(("codec", "rate"), [("danuq", 4), ("danuq8", 8), ("float32", 32)])
def test_without_bits_the_rate_nearest_to_four_is_used(codec, rate):
    assert CODECS[codec]().rates.nearest(4) == rate
    data = fedwsq.pack({"w": normal(8, 8)}, codec)
    (packet,) = decode(data, None).packets["tensors"].values()
    assert packet.rate == rate


def test_zeros_that_take_no_bytes_are_padded_so_that_they_can_be_told_from_lies():
    zeros = {"w": torch.zeros(3 * FREE_ELEMENTS)}
    data = fedwsq.pack(zeros, "ecq")
    assert len(data) == math.ceil(2 * FREE_ELEMENTS / ELEMENTS_PER_BYTE)
    assert torch.equal(fedwsq.unpack(data)["w"], zeros["w"])
    few = fedwsq.pack({"w": torch.zeros(FREE_ELEMENTS)}, "ecq")
    assert len(few) < 500


def test_a_packed_dictionary_is_a_message_as_any_other():
    """Read by hand, from the wire format and what the page on the library says of the label."""
    data = fedwsq.pack({"w": torch.tensor([[1.0, -1.0] * 8]), "n": torch.tensor([3, -1])}, bits=1)
    assert kind_of(data) == Kind.PACK == data[6]
    (length,) = struct.unpack_from("<I", data, HEADER_BYTES - 4)
    at = len(data) - 16 - length
    label = json.loads(data[at:-16])
    assert label["codec"] == {"name": "danuq", **asdict(Danuq())}
    assert label["bits"] == 1
    assert label["tensors"] == [["w", [1, 16], "float32", True], ["n", [2], "int64", False]]
    integers = struct.pack("<BBfIQqq", 14, 0, 64.0, 0, 16, 3, -1)
    at -= len(integers)
    assert data[at : at + len(integers)] == integers
    # 16 elements of size 1 around 0: the unbiased std is sqrt(16 / 15); 1 above 0, least bit first.
    std = (16 / 15) ** 0.5
    coded = struct.pack("<BBfIQf", 1, 1, 1.0, 1, 2, std) + b"\x55\x55"
    at -= len(coded)
    assert data[at : at + len(coded)] == coded
    found = fedwsq.unpack(data)["w"][0, :2]
    assert found.tolist() == pytest.approx([0.7979 * std, -0.7979 * std])


def test_bytes_written_before_can_be_read():
    """Committed with the first version: a change of the format must not leave it unread."""
    found = fedwsq.unpack(bytes.fromhex(GOLDEN))
    assert found["w"].dtype is torch.float16
    assert found["w"].tolist() == [[-1.0] * 8 + [1.0] * 8]
    assert found["b"].item() == 0.5
    assert found["n"].tolist() == [True, False]


# What is refused.


def test_other_names_and_shapes_than_those_expected_are_refused():
    tensors = {"w": normal(4, 4), "b": normal(4)}
    data = fedwsq.pack(tensors)
    assert fedwsq.unpack(data, like={"b": normal(4), "w": normal(4, 4)}).keys() == tensors.keys()
    for like, text in (
        ({"w": normal(4, 4)}, r"tensor 'b' is \(4,\), expected none"),
        ({**tensors, "c": normal(4)}, r"tensor 'c' is not there, expected \(4,\)"),
        ({"w": normal(2, 8), "b": normal(4)}, r"tensor 'w' is \(4, 4\), expected \(2, 8\)"),
    ):
        with pytest.raises(MessageError, match=text):
            fedwsq.unpack(data, like=like)


class Mine(Danuq):
    """A codec that no receiver has."""


@pytest.mark.parametrize(
    ("tensors", "options", "text"),
    [
        ({"w": [1.0]}, {}, "pack takes tensors; 'w' is list"),
        (None, {}, "pack takes a dictionary of tensors, not NoneType"),
        ([normal(4)], {}, "pack takes a dictionary of tensors, not list"),
        (torch.nn.Linear(2, 2), {}, r"give the model's state_dict\(\)"),
        ({3: normal(4)}, {}, "by name; 3 is not a string"),
        ({"w": normal(4, 4).to_sparse()}, {}, "'w' is sparse; pack its to_dense"),
        ({"w": torch.empty(4, 4, device="meta")}, {}, "'w' is on the device meta, .* was loaded"),
        ({"w": torch.zeros(4, dtype=torch.complex64)}, {}, "'w': its type is complex64"),
        ({"\ud800": normal(4)}, {}, "its name is not Unicode"),
        ({"w": normal(4).view([1] * 64 + [4])}, {}, "65 dimensions, at most 64"),
        ({"w": normal(4, 4)}, {"codec": "danuk"}, "codec is 'danuk'.*did you mean danuq"),
        ({"w": normal(4, 4)}, {"codec": "os:system"}, "codec is 'os:system'; it can be"),
        ({"w": normal(4, 4)}, {"codec": Mine()}, "mine is not a codec of the package"),
        ({"w": normal(4, 4)}, {"codec": Danuq}, r"codec is the class Danuq; give one, Danuq\(\)"),
        ({"w": normal(4, 4)}, {"codec": None}, "nonetype is not a codec of the package"),
        ({"w": normal(4, 4)}, {"codec": Rotated(Mine())}, "outside the package"),
        ({"w": normal(4, 4)}, {"bits": 3}, "danuq has no 3-bit rate; it offers 1, 2, 4"),
        ({"w": normal(4, 4)}, {"bits": "4"}, "bits is '4', must be a number; danuq has 1, 2, 4"),
        ({"w": normal(4, 4)}, {"bits": True}, "bits is True, must be a number"),
        ({"w": normal(4, 4)}, {"codec": "sign", "bits": 4}, "sign has no 4-bit rate"),
        ({"w": normal(4, 4)}, {"select": "some"}, "select is 'some'; it can be"),
        ({"w": normal(4, 4)}, {"select": ["w"]}, r"select is \['w'\]; it can be"),
        ({"w": normal(4, 4)}, {"seed": -1}, "seed is -1"),
        ({"w": normal(4, 4)}, {"seed": "a"}, "seed is 'a', must be a whole number"),
        ({"x" * 2**20: normal(4)}, {}, "names and shapes take .* pack the dictionary in parts"),
    ],
)
def test_what_cannot_be_packed_is_said(tensors, options, text):
    options = {"codec": "danuq", **options}
    with pytest.raises(ConfigError, match=text):
        fedwsq.pack(tensors, **options)


def test_what_is_no_message_and_no_dictionary_is_said():
    data = fedwsq.pack({"w": normal(4, 4)})
    for other in (None, "text", 7):
        with pytest.raises(MessageError, match="unpack takes bytes, not "):
            fedwsq.unpack(other)
    for most in ("x", -1, 1.5, None, True):
        with pytest.raises(ConfigError, match=f"max_elements is {most!r}, must be a whole number"):
            fedwsq.unpack(data, max_elements=most)
    for like, text in (
        (torch.nn.Linear(2, 2), "give the model's state_dict"),
        (["w"], "like takes a dictionary of tensors, not list"),
        ({"w": (4, 4)}, "like takes tensors; 'w' is tuple"),
    ):
        with pytest.raises(ConfigError, match=text):
            fedwsq.unpack(data, like=like)
    assert fedwsq.unpack(bytearray(data)).keys() == fedwsq.unpack(memoryview(data)).keys()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e21])
@pytest.mark.parametrize("codec", ["danuq", "float32", "ecq"])
def test_what_is_not_finite_is_refused_by_name(value, codec):
    # There is no learning rate here.
    with pytest.raises(UpdateError, match=r"tensor w: .* finite or above 1e\+20; look for what"):
        fedwsq.pack({"v": normal(4, 4), "w": torch.full((4, 4), value)}, codec)


def test_the_integers_have_a_number_of_their_own():
    assert Integers.wire_id not in {codec.wire_id for codec in CODECS.values()}
    good = Packet(b"\0\1", (), 8.0, 2)
    Integers("bool").check(good)
    for packet, text in (
        (good._replace(code=b"\0\2"), "a bool is 0 or 1"),
        (good._replace(code=b"\0"), "2 bool values take 2 bytes, not 1"),
        (good._replace(side=(1.0,)), "have no scale"),
        (good._replace(own_scale=True), "have no scale"),
    ):
        with pytest.raises(MessageError, match=text):
            Integers("bool").check(packet)
