"""Plain torch against the compiled loops and numpy: the same bits.

And codecs on tensors that are not on the CPU.
"""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from level_tables import at_every_size, in_numpy, level_tables  # noqa: F401

from emulated_gpu import Gpu, every_gpu
from fedwsq.codecs import (
    CODECS,
    Danuq,
    Danuq4,
    Danuq8,
    Fp,
    Nf,
    Qsgd,
    Sign,
    Uq,
    base,
    coding,
    groups,
    kernels,
    reference,
)
from fedwsq.codecs.base import rows_of
from fedwsq.codecs.coding import tables
from fedwsq.codecs.grid import Unit
from fedwsq.codecs.groups import Groups, make_groups
from fedwsq.codecs.kernels import Coded, Scales
from fedwsq.codecs.levels import LEVEL_KINDS
from fedwsq.codecs.packing import pack, packed_bytes
from fedwsq.core.errors import UpdateError

LENGTHS = [0, 1, 2, 7, 8, 9, 1023, 1024, 1025, 5000]
# 3 stands for those whose codes cross bytes, for which there is no compiled loop.
WIDTHS = (1, 2, 3, 4, 8)
TABLES = level_tables(WIDTHS)
pytestmark = pytest.mark.usefixtures("at_every_size")
every_table = pytest.mark.parametrize(("bits", "table"), TABLES.values(), ids=list(TABLES))


def groups_of(numel):
    """By tensor, by channel and by block, the last of which may be shorter."""
    channels = next(rows for rows in (5, 3, 2, 1) if numel % rows == 0)
    return [
        make_groups(numel, 1, "tensor", 64),
        make_groups(numel, channels, "channel", 64),
        *(make_groups(numel, 1, "block", size) for size in (3, 1500)),
    ]


def some_scales(count):
    """Powers of two, by which division is exact, others, and zeros."""
    return np.resize(np.float32([0.25, 2**-10, 0, 4, 0.1, 3e-7]), count)


def values_on_edges(scales, edges, seed):
    """Normal values times the scale of their group.

    Many are on an edge, or one unit in the last place below it or above.
    """
    rng = np.random.default_rng(seed)
    beside = [np.nextafter(edges, np.float32(end)) for end in (-np.inf, np.inf)]
    ratios = rng.normal(size=len(scales)).astype(np.float32)
    where = rng.random(len(ratios)) < 0.7
    ratios[where] = rng.choice(
        np.concatenate([edges, *beside, np.float32([0, -0.0, 1e30, -1e30])]), where.sum()
    )
    return ratios * np.where(scales > 0, scales, np.float32(1))


def by_search(x, each, edges):
    """The number of edges below each x / scale; 0 where the scale is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(each > 0, x / each, np.float32(-np.inf))
    return np.searchsorted(edges, ratios, side="left").astype(np.uint8)


@every_table
def test_codes_have_the_same_bits_in_every_implementation(bits, table):
    edges = tables(table).edges
    for numel in LENGTHS:
        for cut in groups_of(numel):
            scales = Scales(some_scales(cut.count), cut.size)
            each = np.repeat(scales.each, cut.size)[:numel]
            x = values_on_edges(each, edges, numel)
            work = lambda x=x, scales=scales: coding.quantize(x, scales, edges, bits)
            flat, each_group, between = map(torch.from_numpy, (x, scales.each, edges))
            packed = reference.quantize(flat, each_group, cut.size, between, bits)
            assert packed.dtype == torch.uint8
            found = packed.numpy().tobytes()
            assert found == pack(by_search(x, each, edges), bits), (numel, cut)
            assert work() == in_numpy(work) == found, (numel, cut)


@every_table
def test_values_have_the_same_bits_in_every_implementation(bits, table):
    q = tables(table).levels
    rng = np.random.default_rng(bits)
    for numel in LENGTHS:
        weight = (1.0, -1.0, 0.3)[numel % 3]
        codes = rng.integers(2**bits, size=numel, dtype=np.uint8)  # with those that have no level
        code = pack(codes, bits)
        for cut in groups_of(numel):
            scales = (10.0 ** rng.uniform(-45, 19, cut.count)).astype(np.float32)
            scales[2::3] = 0
            each = np.repeat(scales, cut.size)[:numel]
            expected = (q[np.minimum(codes, len(q) - 1)] * each * np.float32(weight)).tobytes()
            flat, levels, each_group = map(torch.from_numpy, (codes, q, scales))
            found = reference.expand(flat, levels, each_group, cut.size, weight)
            assert found.dtype == torch.float32
            assert found.numpy().tobytes() == expected, (numel, cut)
            coded = Coded(code, bits, numel, q, Scales(scales, cut.size))
            work = lambda c=coded, w=weight: coding.look_up(c, w).numpy().tobytes()
            assert work() == in_numpy(work) == expected, (numel, cut)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packing_is_that_of_the_wire(bits):
    for count in range(70):
        codes = torch.randint(
            2**bits, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(count)
        )
        packed = reference.pack(codes, bits)
        assert packed.numpy().tobytes() == pack(codes.numpy(), bits)
        assert torch.equal(reference.unpack(packed, bits, count), codes)


# What is measured


def drawn():
    """Vectors of many lengths and shapes, in float32."""
    rng = np.random.default_rng(0)
    for numel in [*LENGTHS[1:], *range(10, 60), 20_000]:
        x = rng.normal(size=numel)
        for values in (
            x,
            x * 1e-30,
            x * 1e18,
            x + 100,
            np.exp(2 * x),
            x**3,
            np.round(x),
            1e-3 * np.sign(x),
        ):
            yield values.astype(np.float32)


def ulps_apart(a, b):
    """How many float32 lie between numbers of one sign, at most."""
    a, b = (np.asarray(x, np.float32).view(np.int32).astype(np.int64) for x in (a, b))
    return np.abs(a - b).max(initial=0)


def test_the_largest_is_exact_and_the_std_within_one_unit_in_the_last_place():
    apart = 0
    for x in drawn():
        for cut in groups_of(len(x)):
            largest, std = reference.survey(torch.from_numpy(x), cut)
            assert largest.dtype == std.dtype == np.float64
            expected = cut.survey(x)
            assert largest.tobytes() == expected.largest.tobytes()
            np.testing.assert_allclose(std, expected.std, rtol=1e-11)
            apart = max(apart, ulps_apart(std, expected.std))
    assert apart <= 1


@pytest.mark.parametrize("name", coding.STATISTICS)
def test_every_statistic_is_within_one_unit_in_the_last_place(name):
    for x in drawn():
        for cut in groups_of(len(x)):
            found, expected = (
                coding.measure(values, cut, name, 1.25) for values in (torch.from_numpy(x), x)
            )
            assert found.dtype == np.float32
            assert ulps_apart(found, expected) <= (0 if name == "absmax" else 1)


def test_survey_by_hand():
    # 3, -4, 1: mean 0, so the variance is (9 + 16 + 1) / 2. Then a group of equal ones, and
    # a single one.
    largest, std = reference.survey(torch.tensor([3.0, -4, 1, 0.1, 0.1, 0.1, -2]), Groups(3, 3))
    assert largest.tolist() == [4.0, float(np.float32(0.1)), 2.0]
    assert std.tolist() == pytest.approx([math.sqrt(13), 0, 2])
    assert std[1] == 0
    assert [x.tolist() for x in reference.survey(torch.empty(0), Groups(1, 0))] == [[0.0], [0.0]]
    assert [x.tolist() for x in reference.survey(torch.tensor([-2.0]), Groups(1, 1))] == [
        [2.0],
        [2.0],
    ]


@pytest.mark.parametrize("numel", [2, 100, 5000, 100_003])
def test_equal_elements_have_no_spread(numel):
    assert reference.survey(torch.full((numel,), 0.1), Groups(1, numel)).std == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_goes_through_the_survey(bad):
    for at in (0, 1, 5, 11):
        x = torch.ones(12)
        x[at] = bad
        largest = reference.survey(x, Groups(3, 4)).largest
        assert np.isfinite(largest).tolist() == [at // 4 != k for k in range(3)]
        assert math.isnan(largest[at // 4]) == math.isnan(bad)


# Who does the work

VARIANTS = {
    **{f"danuq-{kind}": Danuq(levels=kind) for kind in LEVEL_KINDS},
    "danuq-own": Danuq(dequantize="own"),
    "danuq-calibrate": Danuq(scale_init="calibrate"),
    "danuq-band": Danuq(band=1.5),
    "danuq-channel": Danuq(scale_per="channel"),
    "danuq-block": Danuq(scale_per="block", block=48, scale_init="calibrate"),
    **{
        f"{codec.__name__.lower()}-{unit}-{scale_per}": codec(
            unit=unit, rounding="nearest", scale_per=scale_per, block=48
        )
        for codec in (Danuq4, Danuq8, Fp, Nf, Sign)
        for unit in get_args(Unit)
        for scale_per in ("tensor", "channel", "block")
    },
    "fp-bitsandbytes": Fp(table="bitsandbytes"),
}
BY_CHANCE = {  # and by arithmetic: rounded on the CPU
    "nf-stochastic": Nf(rounding="stochastic", scale_per="channel"),
    "qsgd": Qsgd(),
    "qsgd-nearest": Qsgd(rounding="nearest"),
    "uq-block": Uq(scale_per="block"),
    "uq-nearest": Uq(rounding="nearest"),
}
OTHERS = {
    name: codec()
    for name, codec in CODECS.items()
    if name not in ("danuq", "danuq4", "danuq8", "fp", "nf", "sign")
}
# Blocks stand for the other groups: there are many, and the last is shorter.
ALL = (
    {name: codec for name, codec in VARIANTS.items() if not name.endswith(("-tensor", "-channel"))}
    | BY_CHANCE
    | OTHERS
)
each_variant = pytest.mark.parametrize("codec", VARIANTS.values(), ids=list(VARIANTS))
each_codec = pytest.mark.parametrize("codec", ALL.values(), ids=list(ALL))


def updates():
    """Some shapes, with groups of zeros and of equal elements; one lies apart in memory."""
    x = torch.randn(12, 130, generator=torch.Generator().manual_seed(0)) * 1e-3
    x[3] = 0
    x[7] = 2e-4
    return [
        x,
        x[:, :7].t(),
        x[0, 0],
        torch.empty(0),
        x[0],
        torch.zeros(5),
        torch.full((9,), 0.25),
    ]


def rates_of(codec):
    rates = codec.rates.listed
    return rates if codec.rates.fixed_length else (1.0, rates[-1])


def require_same(packet, expected):
    """Equal but for the last bit of a measured scale, and for codes that such a scale made."""
    assert packet._replace(code=b"", side=()) == expected._replace(code=b"", side=())
    assert ulps_apart(packet.side, expected.side) <= 1
    if packet.side == expected.side or not packet.own_scale:
        assert packet.code == expected.code


@each_variant
def test_every_tensor_that_is_not_on_the_cpu_takes_the_torch_path(codec, monkeypatch):
    for x in updates():
        for rate in rates_of(codec):
            shared = codec.init(x.numel(), rows_of(x.shape))
            expected = codec.encode(x, shared, rate, 0)
            start = torch.linspace(-1, 1, x.numel())
            with monkeypatch.context() as patch:
                patch.setattr(base, "AS_ARRAYS", ())  # nothing is on the CPU any more
                for module, names in (
                    (kernels, ("quantize", "expand", "survey")),
                    (coding, ("nearest", "unpack")),
                ):
                    for name in names:
                        patch.delattr(module, name)  # nobody else can have done it
                patch.delattr(groups, "moments")
                packet = codec.encode(x, shared, rate, 0)
                out = start.clone()
                codec.accumulate(packet, shared, 0, out, 0.3)
            codec.check(packet)
            require_same(packet, expected)
            decoded = codec.decode(packet, shared, 0)
            assert torch.equal(out, start + 0.3 * decoded)


@each_codec
@every_gpu
def test_every_codec_takes_tensors_on_any_device(codec, device):
    rate = rates_of(codec)[0]
    seed = 3
    for x in updates()[:4]:
        shared = codec.init(x.numel(), rows_of(x.shape))
        expected = codec.encode(x, shared, rate, seed)
        start = torch.linspace(-1, 1, x.numel())
        with device() as gpu:
            away = gpu.move(x)
            out = gpu.move(start)
            packet = codec.encode(away, shared, rate, seed)
            codec.accumulate(packet, shared, seed, out, -1.0)
            assert away.device == out.device
            assert torch.equal(away.cpu(), x)
            back = out.cpu()
        codec.check(packet)
        require_same(packet, expected)
        assert (
            back.numpy().tobytes() == (start - codec.decode(packet, shared, seed)).numpy().tobytes()
        )


@every_gpu
def test_the_quotient_is_a_division(device):
    x = np.random.default_rng(0).uniform(1, 2, 1000).astype(np.float32)
    scale = np.float32([3])
    ratios = x / scale
    (apart,) = np.nonzero(x * (1 / scale) > ratios)
    assert len(apart) > 50
    with device() as gpu:
        for i in apart[:20]:  # on an edge, and so below it
            one, each, edges = (
                gpu.move(torch.from_numpy(found)) for found in (x[[i]], scale, ratios[[i]])
            )
            assert reference.quantize(one, each, 1, edges, 1).cpu().tolist() == [0]


@each_variant
def test_only_packed_bytes_and_scales_leave_the_device(codec):
    x = updates()[0]
    rate = rates_of(codec)[-1]
    with Gpu() as gpu:
        away = gpu.move(x)
        out = gpu.move(torch.zeros(x.numel()))
        before = gpu.taken
        packet = codec.encode(away, codec.init(x.numel(), len(x)), rate, 0)
        # Two numbers in float64 for each group, and the largest and the smallest of all.
        assert gpu.taken - before <= packed_bytes(x.numel(), int(rate)) + 16 * len(packet.side) + 16
        before = gpu.taken
        codec.accumulate(packet, codec.init(x.numel(), len(x)), 0, out, 1.0)
        assert gpu.taken == before


@pytest.mark.parametrize("codec", [Danuq(), Nf(), Uq(), *OTHERS.values()])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.1e20])
@every_gpu
def test_what_is_not_finite_is_refused_there_too(codec, bad, device):
    x = torch.ones(20)
    x[13] = bad
    with (
        device() as gpu,
        pytest.raises(UpdateError, match="cannot code values that are not finite"),
    ):
        codec.encode(gpu.move(x), codec.init(20), rates_of(codec)[-1], 0)


def test_the_emulated_device_is_as_strict_as_a_real_one():
    with Gpu() as gpu:
        x = gpu.move(torch.tensor([1.0, 3.0]))
        assert x.device.type != "cpu"
        assert (x + x.flip(0)).cpu().tolist() == [4.0, 4.0]
        assert gpu.taken == 8
        with pytest.raises(RuntimeError, match="add of tensors on two devices"):
            x + torch.ones(2)
        with pytest.raises(RuntimeError, match="numpy"):
            x.numpy()
        many = torch.arange(1.0, 101)
        assert not torch.equal(
            (gpu.move(many) / 3.0).cpu(), many / 3.0
        )  # by reciprocal, as CUDA does
        assert torch.equal((gpu.move(many) / gpu.move(torch.tensor([3.0]))).cpu(), many / 3.0)
