"""A sender with a memory, and receivers with none."""

import io
import re

import pytest
import torch

import fedwsq
from emulated_gpu import every_gpu
from fedwsq.codecs import CODECS, Danuq, Eden
from fedwsq.core.errors import ConfigError, UpdateError
from fedwsq.wire import decode


def gradients(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {
            "w": torch.randn(20, 30, generator=rng),
            "b": 1e-3 * torch.randn(40, generator=rng),
            "small": torch.randn(3, generator=rng),
            "steps": torch.tensor(5),
        }


@pytest.mark.parametrize(
    ("codec", "bits"),
    [("danuq", 1), ("sign", 1), ("ecq", 1), ("topk", 1), (Eden("least-squares"), 2), ("nf", 4)],
)
def test_what_was_sent_adds_up_to_what_was_given_but_for_the_last_residual(codec, bits):
    compressor = fedwsq.Compressor(codec, bits)
    given = torch.zeros(20, 30)
    arrived = torch.zeros(20, 30)
    for tensors in gradients(30):
        found = fedwsq.unpack(compressor.compress(tensors), like=tensors)
        given += tensors["w"]
        arrived += found["w"]
        assert torch.equal(found["small"], tensors["small"])
        assert torch.equal(found["steps"], tensors["steps"])
    residual = compressor.state_dict()["residuals"]["w"]
    torch.testing.assert_close(arrived + residual, given, rtol=0, atol=1e-4)
    # The memory stays small: it is no pile of all that was ever lost.
    assert residual.norm() < 4 * tensors["w"].norm()


def test_without_error_feedback_nothing_is_carried_over():
    compressor = fedwsq.Compressor("sign", None, error_feedback=False)
    (tensors,) = gradients(1)
    first = fedwsq.unpack(compressor.compress(tensors))
    second = fedwsq.unpack(compressor.compress(tensors))
    assert torch.equal(first["w"], second["w"])
    assert compressor.state_dict()["residuals"] == {}


def test_a_receiver_needs_no_earlier_message():
    compressor = fedwsq.Compressor(bits=2)
    messages = [compressor.compress(tensors) for tensors in gradients(5)]
    latest = fedwsq.unpack(messages[-1])
    for receiver in (compressor, fedwsq.Compressor(bits=2), fedwsq.Compressor("ecq")):
        found = receiver.decompress(messages[-1], like=latest)
        assert all(torch.equal(found[name], x) for name, x in latest.items())


def test_the_scale_is_the_moving_average_of_what_was_sent():
    compressor = fedwsq.Compressor(Danuq(momentum=0.5), bits=1, error_feedback=False)
    ones = torch.tensor([[1.0, -1.0] * 8])  # their unbiased std is sqrt(16 / 15)
    std = (16 / 15) ** 0.5
    first = fedwsq.unpack(compressor.compress({"w": ones}))["w"]
    # Nothing is known before: the first message has its own scale, and starts the average with it.
    assert first[0, 0] == pytest.approx(0.7979 * std)
    second = fedwsq.unpack(compressor.compress({"w": 3 * ones}))["w"]
    assert second[0, 0] == pytest.approx(0.7979 * std)
    # (1 - 0.5) std + 0.5 x 3 std
    third = fedwsq.unpack(compressor.compress({"w": 3 * ones}))["w"]
    assert third[0, 0] == pytest.approx(0.7979 * 2 * std)
    assert compressor.state_dict()["scales"]["w"].item() == pytest.approx(2.5 * std)


def test_a_tensor_of_zeros_has_no_scale_yet():
    compressor = fedwsq.Compressor(bits=1)
    for _ in range(2):
        found = fedwsq.unpack(compressor.compress({"w": torch.zeros(4, 4)}))
        assert torch.equal(found["w"], torch.zeros(4, 4))
    x = torch.randn(4, 4)
    found = fedwsq.unpack(compressor.compress({"w": x}))
    assert (found["w"] - x).norm() < 0.8 * x.norm()


def test_messages_may_hold_other_tensors():
    """As buckets of gradients do: each name has its own memory."""
    whole = fedwsq.Compressor(bits=1)
    by_parts = fedwsq.Compressor(bits=1)
    for tensors in gradients(4):
        found = fedwsq.unpack(whole.compress(tensors))
        parts = {}
        for name, x in tensors.items():
            parts |= fedwsq.unpack(by_parts.compress({name: x}))
        assert all(torch.equal(parts[name], x) for name, x in found.items())
    with pytest.raises(ConfigError, match=r"tensor 'w' is \(30, 20\), and was \(20, 30\) before"):
        whole.compress({"w": torch.randn(30, 20)})


def test_a_name_that_means_another_tensor_now():
    """Integers are never added to; without residuals even the shape may change."""
    compressor = fedwsq.Compressor(bits=1)
    compressor.compress({"w": torch.randn(4, 5)})
    integers = torch.arange(20).view(4, 5)
    assert torch.equal(fedwsq.unpack(compressor.compress({"w": integers}))["w"], integers)

    by_channel = fedwsq.Compressor(Danuq(scale_per="channel"), bits=1, error_feedback=False)
    for shape in ((4, 5), (5, 4), (5, 4)):
        x = torch.randn(shape)
        found = fedwsq.unpack(by_channel.compress({"w": x}))["w"]
        assert (found - x).norm() < x.norm()


@pytest.mark.parametrize("codec", ["danuq", "rotated", "qsgd", "ecq"])
def test_a_checkpoint_goes_on_with_the_same_bytes(codec):
    options = {"bits": None, "error_feedback": codec != "qsgd", "seed": 3}
    compressor = fedwsq.Compressor(codec, **options)
    first, second, third = gradients(3)
    compressor.compress(first)
    compressor.compress(second)
    file = io.BytesIO()
    torch.save(compressor.state_dict(), file)
    expected = compressor.compress(third)

    file.seek(0)
    resumed = fedwsq.Compressor(codec, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.compress(third) == expected


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"settings": {}, "messages": 1, "residuals": {}},
        {"settings": {}, "messages": "1", "residuals": {}, "scales": {}},
        {"settings": {}, "messages": 1, "residuals": {"w": 3}, "scales": {}},
        {"settings": 3, "messages": 1, "residuals": {}, "scales": {}},
    ],
)
def test_what_is_no_state_of_a_compressor_is_not_loaded(state):
    compressor = fedwsq.Compressor(bits=1)
    with pytest.raises(ConfigError, match="not what state_dict"):
        compressor.load_state_dict(state)
    assert compressor.state_dict()["messages"] == 0


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"codec": "sign"}, "whose codec is 'sign', and of this one it is 'danuq'; make"),
        ({"codec": Danuq(momentum=0.5)}, "whose codec.momentum is 0.5, and of this one it is 0.1"),
        ({"bits": 4}, "whose bits is 4, and of this one it is 1; make it with the same settings"),
        ({"error_feedback": False}, "whose error_feedback is False, and of this one it is True"),
        ({"select": "weights"}, "whose select is 'weights', and of this one it is 'all'"),
        ({"seed": 3}, "whose seed is 3, and of this one it is 0"),
    ],
)
def test_the_state_of_another_compressor_is_refused(other, why):
    state = fedwsq.Compressor(**{"codec": "danuq", "bits": 1, **other}).state_dict()
    compressor = fedwsq.Compressor("danuq", bits=1)
    with pytest.raises(ConfigError, match=re.escape(why)):
        compressor.load_state_dict(state)


def test_what_is_refused_leaves_the_memory_as_it_was():
    compressor = fedwsq.Compressor(bits=1)
    first, second = gradients(2)
    compressor.compress(first)
    before = compressor.state_dict()
    with pytest.raises(UpdateError, match="tensor b: "):
        compressor.compress({**second, "b": second["b"] / 0})
    after = compressor.state_dict()
    assert after["messages"] == before["messages"]
    for part in ("residuals", "scales"):
        assert after[part].keys() == before[part].keys()
        assert all(after[part][name] is x for name, x in before[part].items())


def test_a_code_that_would_make_its_memory_grow_is_refused():
    with pytest.raises(ConfigError, match="error_feedback needs a code that loses less"):
        fedwsq.Compressor("qsgd", bits=2)
    fedwsq.Compressor("qsgd", bits=2, error_feedback=False)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_can_be_sent_again_and_again(codec):
    compressor = fedwsq.Compressor(codec, None, error_feedback=False)
    for tensors in gradients(3):
        found = fedwsq.unpack(compressor.compress(tensors), like=tensors)
        assert found.keys() == tensors.keys()


def test_a_state_is_carried_only_where_there_is_one():
    compressor = fedwsq.Compressor(bits=1)
    first, second = gradients(2)
    assert decode(compressor.compress(first), None).states == {}
    carried = decode(compressor.compress(second), None).states["tensors"]
    assert [x.numel() for x in carried.values()] == [1, 1]
    sign = fedwsq.Compressor("sign", None)
    sign.compress(first)
    assert decode(sign.compress(second), None).states == {}


@every_gpu
def test_what_is_on_a_gpu_is_coded_there_and_remembered_there(device):
    """Two rounds give the messages that tensors on the CPU give."""
    here = fedwsq.Compressor("sign")
    there = fedwsq.Compressor("sign")
    for tensors in gradients(2):
        expected = fedwsq.unpack(here.compress(tensors))
        with device() as gpu:
            away = {name: gpu.move(x) for name, x in tensors.items()}
            found = fedwsq.unpack(there.compress(away))
        for name, x in expected.items():
            torch.testing.assert_close(found[name], x)
