"""Compiled loops against their twins in plain numpy: the same bits, whatever the input."""

import hashlib
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from level_tables import at_every_size, in_numpy, level_tables  # noqa: F401

from fedwsq.codecs import CODECS, Danuq, Ecq, Eden, Fp, Nf, Packet, Sign, Uq, compiled, kernels
from fedwsq.codecs.coding import look_up, quantize, tables
from fedwsq.codecs.danuq import Danuq8
from fedwsq.codecs.grid import Grid
from fedwsq.codecs.groups import moments, survey
from fedwsq.codecs.kernels import Coded, Rounding, Scales
from fedwsq.codecs.levels import LEVEL_KINDS, levels
from fedwsq.codecs.packing import pack
from fedwsq.core.errors import MessageError, UpdateError

pytest.importorskip("numba")

LENGTHS = [*range(301), 1023, 1024, 1025, 5003]
ODD = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e20, -1e20, 3e38, -3e38]


TABLES = level_tables(kernels.WIDTHS)
pytestmark = pytest.mark.usefixtures("at_every_size")


def values_around(edges, scale, numel, seed=0):
    """Normal values with odd ones among them, and some exactly on an edge."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=numel).astype(np.float32) * scale
    special = np.concatenate(
        [np.float32(ODD), edges * scale, np.nextafter(edges, np.float32(9)) * scale]
    )
    where = rng.random(numel) < 0.3
    x[where] = rng.choice(special, where.sum())
    return x


def same_bits(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def some_scales(numel, draw):
    """For one group, and for several with a shorter last one: what `draw` makes of their number."""
    yield Scales(draw(1), numel)
    if numel:
        for size in (3, 8, 100, 1500):
            yield Scales(draw(math.ceil(numel / size)), size)


def single(scale, numel):
    return Scales(np.float32([scale]), numel)


def test_the_tables_are_those_of_the_package():
    assert len(TABLES) > 20
    assert {bits for bits, _ in TABLES.values()} == set(kernels.WIDTHS)
    assert kernels.usable(1, 4)
    assert not kernels.usable(10**9, 3)


@pytest.mark.parametrize("bits", kernels.WIDTHS)
def test_codes_at_every_length(bits):
    between = tables(levels(bits, "optimal")).edges

    def draw(count):
        each = np.full(count, 0.25, np.float32)
        each[1::3] *= 1.7
        each[2::3] = 0
        return each

    for numel in LENGTHS:
        x = values_around(between, np.float32(0.25), numel, numel)
        for scales in some_scales(numel, draw):
            work = lambda s=scales, x=x: quantize(x, s, between, bits)
            assert work() == in_numpy(work), (numel, scales.size)


@pytest.mark.parametrize("name", TABLES)
def test_codes_of_every_table(name):
    bits, table = TABLES[name]
    between = tables(table).edges
    x = values_around(between, np.float32(1), 20_011)
    x[:8] = [np.inf, -np.inf, np.nan, 0, 1, -1, 3e38, -3e38]
    code = quantize(x, single(1, len(x)), between, bits)
    # By search: how many edges are below; NaN is above none.
    codes = np.searchsorted(between, np.nan_to_num(x, nan=-np.inf), side="left").astype(np.uint8)
    assert code == pack(codes, bits)


def test_the_quotient_is_a_division():
    x = np.random.default_rng(0).uniform(1, 2, 1000).astype(np.float32)
    for scale in np.float32([3, 0.1]):
        ratio = x / scale
        by_reciprocal = x * (1 / scale)
        (apart,) = np.nonzero(by_reciprocal > ratio)
        assert len(apart) > 50
        for i in apart[:50]:  # on an edge, and so below it
            assert quantize(x[i : i + 1], single(scale, 1), ratio[i : i + 1], 1) == b"\0"


@pytest.mark.parametrize("bits", kernels.WIDTHS)
def test_decoding_and_adding_at_every_length(bits):
    rng = np.random.default_rng(bits)
    q = tables(levels(bits, "optimal")).levels

    def draw(count):
        each = (10.0 ** rng.uniform(-45, 19, count)).astype(np.float32)
        each[2::3] = 0
        return each

    for numel in LENGTHS:
        codes = rng.integers(2**bits, size=numel, dtype=np.uint8)
        code = pack(codes, bits)
        start = torch.from_numpy(rng.normal(size=numel).astype(np.float32))
        for scales in some_scales(numel, draw):
            coded = Coded(code, bits, numel, q, scales)
            decode = lambda c=coded: look_up(c, 0.3).numpy()
            assert same_bits(decode(), in_numpy(decode)), (numel, scales.size)
            add = lambda c=coded, s=start: look_up(c, 0.3, s.clone()).numpy()
            assert same_bits(add(), in_numpy(add)), (numel, scales.size)


@pytest.mark.parametrize("name", TABLES)
def test_values_of_every_table(name):
    bits, table = TABLES[name]
    q = tables(table).levels
    numel = 2**bits * 5 + 3
    # With those that have no level: the last one's.
    codes = (np.arange(numel) % 2**bits).astype(np.uint8)
    coded = Coded(pack(codes, bits), bits, numel, q, single(0.7, numel))
    expected = q[np.minimum(codes, len(q) - 1)] * np.float32(0.7) * np.float32(0.3)
    assert same_bits(look_up(coded, 0.3).numpy(), expected)
    out = torch.ones(numel)
    assert look_up(coded, 0.3, out) is out
    assert same_bits(out.numpy(), 1 + expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_moments_at_every_length(rows):
    for numel in [*LENGTHS[1:], 511, 512, 513, 40_000, 131_072 + 5]:
        x = values_around(np.float32([1]), np.float32(1e-3), rows * numel, numel).reshape(
            rows, numel
        )
        x[np.abs(x) > 1e30] = 1e-3
        assert same_bits(moments(x), in_numpy(lambda x=x: moments(x))), numel


def test_moments_by_hand():
    # 3, -4, 1: 0, -7 and -2 from the first; 49 + 4. Mean 0, so the variance is (9 + 16 + 1) / 2.
    for work in (lambda x: x(), in_numpy):
        rows = np.float32([[3, -4, 1]])
        assert work(lambda r=rows: moments(r)).tolist() == [[4, -9, 53]]
        largest, std = work(lambda r=rows: survey(r))
        assert (largest.tolist(), std.tolist()) == ([4.0], [np.sqrt(13.0)])


@pytest.mark.parametrize("shift", [0.0, 1.0, 1e6])
def test_the_std_is_exact_wherever_the_first_element_lies(shift):
    x = np.random.default_rng(0).normal(size=300_000).astype(np.float32) + np.float32(shift)
    for first in (x[0], np.float32(1e4), np.float32(-1e12)):
        x[0] = first
        (std,) = survey(x[None]).std
        assert std == pytest.approx(np.std(x, dtype=np.float64, ddof=1), rel=1e-10)
    assert survey(np.full((1, 100_000), 0.1, np.float32)).std == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e20])
def test_what_is_not_finite_is_refused(bad):
    for at in (0, 1, 700, 1999):
        x = torch.ones(2000)
        x[at] = bad
        for work in (lambda f: f(), in_numpy):
            with pytest.raises(UpdateError, match="danuq cannot code values that are not finite"):
                work(lambda x=x: Danuq().encode(x, Danuq().init(2000), 4, 0))


CASES = [
    *((Danuq(levels=kind), bits) for kind in LEVEL_KINDS for bits in (1, 2, 4)),
    *(
        (Danuq(scale_per="block", block=60), 2),
        (Danuq(scale_per="channel"), 4),
        (Danuq(scale_init="calibrate"), 1),
    ),
    *(
        (Nf(), 4),
        (Nf(scale_per="block"), 2),
        (Nf(rounding="stochastic"), 4),
        (Fp(unit="fitted"), 4),
        (Sign(), 1),
    ),
    *(
        (Danuq8(), 8),
        (Danuq8(scale_per="channel"), 8),
        (Uq(), 4),
        (Uq(rounding="nearest"), 2),
        (Eden(), 1),
        (Eden(), 4),
    ),
    *(
        (Ecq(), 0.1),
        (Ecq(), 1),
        (Ecq(), 7),
    ),
]


def digest():
    """What all of these make of an update, packed and unpacked."""
    found = hashlib.sha256()
    x = torch.randn(70, 1001, generator=torch.Generator().manual_seed(5)) * 1e-3
    x[3] = 0
    for codec, rate in CASES:
        shared = codec.init(x.numel(), len(x))
        packet = codec.encode(x, shared, rate, 1)
        out = torch.linspace(-1, 1, x.numel())
        codec.accumulate(packet, shared, 1, out, 0.1)
        decoded = codec.decode(packet, shared, 1)
        found.update(repr(packet).encode() + decoded.numpy().tobytes() + out.numpy().tobytes())
    return found.hexdigest()


def test_codecs_give_the_same_bytes_without_kernels():
    assert digest() == in_numpy(digest)


def python(program, folder, **environment):
    """A Python of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WITHOUT = """
import sys
import torch
from fedwsq.codecs import Danuq
Danuq().encode(torch.ones(10_000), Danuq().init(10_000), 4, 0)
assert "numba" not in sys.modules, "loaded for nothing"
sys.modules["numba"] = None
import pytest
pytest.importorskip = lambda name: None  # this file would be skipped
import test_kernels
print(test_kernels.digest())
"""


def test_without_numba_everything_works_and_gives_the_same_bytes():
    assert python(WITHOUT, os.path.dirname(__file__)) == digest()


ALONE = """
import kernels, numpy
print(kernels.usable(2**16), kernels.survey(numpy.float32([3, -4, 1]), 3).tolist())
"""


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_or_is_damaged_does_no_harm(tmp_path):
    shutil.copy(kernels.__file__, tmp_path / "kernels.py")
    cache = tmp_path / "__pycache__"
    expected = "True [[4.0, -9.0, 53.0]]"
    nowhere = {
        "HOME": "/proc/none",
        "XDG_CACHE_HOME": "/proc/none",
        "NUMBA_CACHE_DIR": "/proc/none",
    }
    cache.touch()  # a file where the folder would be
    assert python(ALONE, tmp_path, PYTHONDONTWRITEBYTECODE="1", **nowhere) == expected
    cache.unlink()
    assert python(ALONE, tmp_path, NUMBA_CACHE_DIR="") == expected
    kept = [*cache.glob("*.nbi"), *cache.glob("*.nbc")]
    assert len(kept) == 2
    for file in kept:
        file.write_bytes(file.read_bytes()[:100] + b"damaged")
        assert python(ALONE, tmp_path, NUMBA_CACHE_DIR="") == expected


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_wrong_number_of_scales_never_reaches_the_loops(count):
    q, between = tables(levels(1))
    x = np.ones(24, np.float32)
    scales = Scales(np.ones(count, np.float32), 8)
    with pytest.raises(ValueError, match=f"{count} scales do not fit 24 elements in groups of 8"):
        kernels.quantize(x, scales, 1, Rounding(kernels.COUNT, between))
    with pytest.raises(ValueError, match=f"{count} scales do not fit"):
        kernels.expand(Coded(bytes(3), 1, 24, q, scales), 1.0, x, add=True)


def test_lengths_that_do_not_match_never_reach_the_loops():
    x = np.ones(24, np.float32)
    coded = Coded(bytes(2), 1, 24, tables(levels(1)).levels, single(1, 24))
    with pytest.raises(ValueError, match="2 bytes are not 24 codes of 1 bits"):
        kernels.expand(coded, 1.0, x, add=True)
    with pytest.raises(ValueError, match="3 edges do not fit in 1 bits"):
        kernels.quantize(x, single(1, 24), 1, Rounding(kernels.COUNT, x[:3]))
    with pytest.raises(ValueError, match="2 draws do not fit 24 elements"):
        kernels.quantize(x, single(1, 24), 1, Rounding(kernels.UNIFORM, draws=x[:2]))
    packet = Packet(bytes(3), (1.0,), 1, 24, own_scale=True)
    with pytest.raises(ValueError, match="1 scales do not fit 32 elements"):
        Sign().accumulate(packet, torch.empty(0), 0, torch.zeros(32), 1.0)
    with pytest.raises(MessageError, match="take 2 bytes, not 3"):
        Sign().decode(packet._replace(numel=16), torch.empty(0), 0)


@pytest.mark.parametrize("name", [name for name in CODECS if issubclass(CODECS[name], Grid)])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("scale_per", ["tensor", "channel", "block"])
def test_rounding_by_chance_and_by_arithmetic_gives_the_bits_of_numpy(name, rounding, scale_per):
    """Whole packets of every grid, with groups of zeros and values on levels."""
    codec = CODECS[name](rounding=rounding, scale_per=scale_per, block=7)
    for bits in set(codec.rates.listed) & set(kernels.WIDTHS):
        for numel in (1, 2, 9, 1023, 1025, 3000):
            rng = np.random.default_rng(numel)
            x = rng.normal(size=numel).astype(np.float32)
            x = np.where(
                rng.random(numel) < 0.3, rng.choice(np.float32(codec.levels(bits)), numel), x
            )
            x = torch.from_numpy(x)
            x[: numel // 3] = 0
            x = x.reshape(3, -1) if numel % 3 == 0 else x
            found = codec.encode(x, torch.empty(0), bits, 5)
            assert found == in_numpy(lambda: codec.encode(x, torch.empty(0), bits, 5))  # noqa: B023
    assert compiled.loaded


@pytest.mark.parametrize("name", ["danuq", "nf", "uq"])
def test_elements_that_lie_apart_are_coded_as_if_they_did_not(name):
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0))[::2]
    shared = CODECS[name]().init(2000)
    assert CODECS[name]().encode(x, shared, 4, 1) == CODECS[name]().encode(x.clone(), shared, 4, 1)
