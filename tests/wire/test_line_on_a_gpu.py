"""A line takes tensors where they are; packets, errors and what is kept are those of the CPU."""

import pytest
import torch

from emulated_gpu import Gpu, every_gpu
from fedwsq.codecs import Danuq, Fixed, Float16, Float32, Sign, Topk
from fedwsq.core.types import Key
from fedwsq.wire import Line, Link, Schema
from fedwsq.wire.line import energy_of

SCHEMA = Schema(
    {"stem": (2, 1, 3), "a": (20, 4, 3), "b": (7, 5, 1), "norm": (2,), "temperature": ()}
)
KEY = Key(0, 1, 2)
# Codes that do not depend on the last bit of a measured scale.
LINKS = [
    Link(Danuq(), Fixed(4)),
    Link(Danuq(), Fixed(1), error_feedback=True),
    Link(Sign(), Fixed(1), "all", error_feedback=True),
    Link(Topk(), Fixed(2), rest=Float16(), error_feedback=True),
    Link(Float32()),
]


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 2e-3
        for name, shape in SCHEMA.shapes.items()
    }


def send(link, tensors, residuals):
    line = Line(link, SCHEMA)
    shared = line.init(("delta",))
    granted = line.grant(KEY, None, shared)
    return line.send({"delta": tensors}, shared, KEY, granted, residuals)


@pytest.mark.parametrize("link", LINKS)
@every_gpu
def test_two_rounds_are_those_of_the_cpu(link, device):
    here = None
    there = None
    for number in range(2):
        x = draw(number)
        expected = send(link, x, here)
        with device() as gpu:
            away = {name: gpu.move(tensor) for name, tensor in x.items()}
            sent = send(link, away, there)
            assert all(torch.equal(tensor.cpu(), x[name]) for name, tensor in away.items())
        packets = sent.packets["delta"]
        for name, packet in expected.packets["delta"].items():
            assert packets[name]._replace(side=()) == packet._replace(side=())
            assert packets[name].side == pytest.approx(packet.side, rel=2e-7)
        assert sent.error == pytest.approx(expected.error, rel=1e-6)
        here = expected.residuals
        there = sent.residuals
        assert there.keys() == here.keys()
        for name, residual in here.get("delta", {}).items():
            assert type(there["delta"][name]) is torch.Tensor
            assert there["delta"][name].device.type == "cpu"
            torch.testing.assert_close(there["delta"][name], residual, rtol=1e-5, atol=1e-9)
        assert bool(here) == link.error_feedback


@every_gpu
def test_the_energy_of_large_and_of_small_values(device):
    for scale in (1e-30, 1.0, 1e19):  # whose squares float32 does not hold
        x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * scale
        expected = sum(value * value for value in x.tolist())
        with device() as gpu:
            assert energy_of(gpu.move(x)) == pytest.approx(expected, rel=1e-12)
        assert energy_of(x) == pytest.approx(expected, rel=1e-12)


def test_a_coded_tensor_stays_there():
    link = Link(Danuq(), Fixed(1))
    with Gpu() as gpu:
        sent = send(link, {name: gpu.move(x) for name, x in draw(0).items()}, None)
    coded = Line(link, SCHEMA).coded
    whole = sum(4 * size for name, size in SCHEMA.sizes.items() if name not in coded)
    codes = sum(len(sent.packets["delta"][name].code) for name in coded)
    # Of each coded tensor largest and std besides, and of each tensor its energy and its error's.
    assert gpu.taken <= whole + codes + 16 * len(coded) + 16 * len(SCHEMA.names)
