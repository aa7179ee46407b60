"""The rotation against explicit matrices: every length and slice, and what it does to odd data."""

import numpy as np
import pytest
import scipy.linalg

from fedwsq.codecs.hadamard import (
    blocks,
    hadamard,
    padded,
    random_signs,
    rotate,
    slice_count,
    unrotate,
)

LENGTHS = [*range(301), 2047, 4032, 4033, 4095, 4096, 4097, 8191, 10_000, 3 * 4096 + 2048 + 64 + 1]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def signs(numel, seed):
    """Both rows of random signs, in float64: a byte from its lowest bit on, a set one for -1."""
    return [
        1.0 - 2 * np.ravel(row[:, None] >> np.arange(8) & 1)
        for row in random_signs(padded(numel), seed)
    ]


def by_halves(x):
    """The Hadamard transform by its definition, [[H, H], [H, -H]], in float64."""
    if len(x) == 64:
        return scipy.linalg.hadamard(64) @ x
    a, b = np.split(x, 2)
    return np.concatenate([by_halves(a + b), by_halves(a - b)])


@pytest.mark.parametrize("size", [2**k for k in range(11)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_butterflies_are_the_matrix(size, count):
    rows = (
        np.random.default_rng(size).integers(-99, 100, (count, size)).astype(np.float32)
    )  # sums are exact
    expected = rows @ scipy.linalg.hadamard(size).astype(np.float32)
    hadamard(rows)
    assert np.array_equal(rows, expected)


@pytest.mark.parametrize("numel", [1, 64, 100, 128, 500, 512])
def test_a_slice_is_multiplied_by_the_matrix_it_should_be(numel):
    size = padded(numel)  # all of these are a single slice
    first, second = signs(numel, seed=5)
    h = scipy.linalg.hadamard(size)
    matrix = h @ np.diag(second) @ h @ np.diag(first) / size
    x = draw(numel)
    expected = matrix @ np.pad(x, (0, size - numel)).astype(np.float64)
    np.testing.assert_allclose(rotate(x, seed=5), expected, atol=1e-5)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-12)
    rotated = draw(size, seed=1)
    back = (matrix.T @ rotated.astype(np.float64))[:numel]
    np.testing.assert_allclose(unrotate(rotated, numel, seed=5), back, atol=1e-5)


def test_many_slices_are_each_multiplied_by_their_own():
    numel = (
        70 * 4096 + 2048 + 128 + 9
    )  # three blocks of whole slices, then 2048, 128 and a padded 64
    x = draw(numel)
    first, second = (
        np.split(row, bounds) for bounds in [slice_bounds(numel)] for row in signs(numel, seed=3)
    )
    pieces = np.split(np.pad(x, (0, padded(numel) - numel)).astype(np.float64), slice_bounds(numel))
    assert [len(piece) for piece in pieces] == [4096] * 70 + [2048, 128, 64]
    expected = [
        by_halves(by_halves(p * a) * b) / len(p)
        for p, a, b in zip(pieces, first, second, strict=True)
    ]
    np.testing.assert_allclose(rotate(x, seed=3), np.concatenate(expected), atol=2e-5)


def slice_bounds(numel):
    return [block.start + k * block.size for block in blocks(numel) for k in range(block.count)][1:]


def test_slices_tile_every_length():
    for numel in LENGTHS:
        check_slices(numel)


def check_slices(numel):
    found = list(blocks(numel))
    sizes = [block.size for block in found for _ in range(block.count)]
    assert sum(sizes) == padded(numel)
    assert 0 <= padded(numel) - numel <= 63
    assert len(sizes) == slice_count(numel)
    assert [block.start for block in found] == [sum(sizes[: block.first]) for block in found]
    whole = numel // 4096
    assert sizes[:whole] == [4096] * whole
    assert set(sizes) <= {2**k for k in range(6, 13)}
    tail = sizes[whole:]
    assert tail == sorted(set(tail), reverse=True)


def test_norms_are_kept_and_rotating_back_gives_the_input():
    for numel in LENGTHS:
        check_round_trip(numel)


def check_round_trip(numel):
    x = draw(numel, seed=numel)
    before = x.copy()
    rotated = rotate(x, seed=numel)
    assert np.array_equal(x, before)
    assert (rotated.shape, rotated.dtype) == ((padded(numel),), np.float32)
    assert np.square(rotated, dtype=np.float64).sum() == pytest.approx(
        np.square(x, dtype=np.float64).sum(), rel=1e-6
    )
    back = unrotate(rotated, numel, seed=numel)
    assert back.shape == (numel,)
    # Of a slice's rounding errors each element gets its share: a few ulps of the rms.
    np.testing.assert_allclose(back, x, rtol=0, atol=3e-6)


def test_the_seed_is_all_that_the_signs_depend_on():
    x = draw(1000)
    assert np.array_equal(rotate(x, seed=1), rotate(x.copy(), seed=1))
    assert not np.array_equal(rotate(x, seed=1), rotate(x, seed=2))
    bits = np.unpackbits(random_signs(2**16, seed=0))
    assert bits.mean() == pytest.approx(0.5, abs=0.01)
    first, second = random_signs(2**16, seed=0)
    assert np.unpackbits(first ^ second).mean() == pytest.approx(0.5, abs=0.01)


def kurtosis(x):
    return np.mean(x**4.0) / np.mean(x**2.0) ** 2


@pytest.mark.parametrize("spikes", [[0], [0, 17], [5, 6, 7]])
def test_a_few_huge_values_come_out_normal(spikes):
    # After one transform |y| would take 1, 2 or 4 distinct values: a kurtosis of 1, 2 or 7 / 3.
    x = np.zeros(4096, np.float32)
    x[spikes] = 1e3
    found = [kurtosis(rotate(x, seed).astype(np.float64)) for seed in range(20)]
    assert np.mean(found) == pytest.approx(3, abs=0.06)


def test_numbers_at_both_ends_of_the_range():
    x = np.full(4096, 1e20, np.float32)
    back = unrotate(rotate(x, seed=0), 4096, seed=0)
    np.testing.assert_allclose(back, x, rtol=1e-5)
    tiny = np.full(300, 1e-42, np.float32)
    np.testing.assert_allclose(unrotate(rotate(tiny, seed=0), 300, seed=0), tiny, atol=1e-43)
    assert not rotate(np.zeros(4097, np.float32), seed=0).any()
