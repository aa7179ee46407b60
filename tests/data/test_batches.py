import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import torch_rng
from fedwsq.data.batches import augment, batches, normalize, warp


@given(st.integers(0, 40), st.integers(1, 12))
def test_an_epoch_takes_every_example_once(count, size):
    epoch = batches(count, size, torch_rng(0))
    assert [len(batch) for batch in epoch[:-1]] == [size] * (len(epoch) - 1)
    assert len(epoch) == math.ceil(count / size)
    assert sorted(torch.cat([torch.zeros(0), *epoch]).tolist()) == list(range(count))


def test_an_epoch_is_shuffled_by_its_generator():
    order = torch.cat(batches(100, 7, torch_rng(0)))
    assert torch.equal(order, torch.cat(batches(100, 7, torch_rng(0))))
    assert not torch.equal(order, torch.cat(batches(100, 7, torch_rng(1))))
    rng = torch_rng(0)
    first, second = (torch.cat(batches(100, 7, rng)) for _ in range(2))
    assert not torch.equal(first, second)
    with pytest.raises(ConfigError, match="batch size is 0"):
        batches(10, 0, rng)


def images(n: int, c: int, h: int, w: int) -> torch.Tensor:
    """Random bytes without a zero, so that a filled pixel shows."""
    return torch.randint(1, 256, (n, c, h, w), generator=torch_rng(7), dtype=torch.uint8)


def one_by_one(
    image: torch.Tensor, angle: float, offset: tuple[int, int], flip: bool
) -> tuple[torch.Tensor, list]:
    """The three published steps on one image [c, h, w], pixel by pixel.

    Also the pixels too close to a tie to compare.
    """
    _, h, w = image.shape
    cos = math.cos(math.radians(angle))
    sin = math.sin(math.radians(angle))
    rotated = torch.zeros_like(image)
    unsure = set()
    for i in range(h):
        for j in range(w):
            dy = i - (h - 1) / 2
            dx = j - (w - 1) / 2
            row = sin * dx + cos * dy + h / 2
            column = cos * dx - sin * dy + w / 2
            if angle and min(abs(row - round(row)), abs(column - round(column))) < 1e-4:
                unsure.add((i, j))
            if 0 <= math.floor(row) < h and 0 <= math.floor(column) < w:
                rotated[:, i, j] = image[:, math.floor(row), math.floor(column)]

    out = torch.zeros_like(image)
    ties = []
    for i in range(h):
        for j in range(w):
            from_i = i + offset[0] - 4
            from_j = j + offset[1] - 4
            to = j
            if flip:
                to = w - 1 - j
            if 0 <= from_i < h and 0 <= from_j < w:
                out[:, i, to] = rotated[:, from_i, from_j]
            if (from_i, from_j) in unsure:
                ties.append((i, to))
    return out, ties


@pytest.mark.parametrize("shape", [(12, 3, 32, 32), (3, 3, 64, 64), (6, 1, 8, 8), (5, 2, 11, 16)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_augment_is_rotation_then_crop_then_flip(shape, dtype):
    x = images(*shape).to(dtype)
    n = len(x)
    rng = torch_rng(3)  # the documented order of the draws
    angles = torch.empty(n).uniform_(-10, 10, generator=rng)
    offsets = torch.randint(9, (n, 2), generator=rng)
    flips = torch.rand(n, generator=rng) < 0.5
    out = augment(x, torch_rng(3))
    assert (out.shape, out.dtype) == (x.shape, dtype)
    for k in range(n):
        expected, ties = one_by_one(
            x[k], float(angles[k]), tuple(offsets[k].tolist()), bool(flips[k])
        )
        assert len(ties) < 5
        for i, j in ties:
            expected[:, i, j] = out[k, :, i, j]
        assert torch.equal(out[k], expected)


def still(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Angles, offsets and flips that change nothing."""
    return torch.zeros(n), torch.full((n, 2), 4), torch.zeros(n, dtype=torch.bool)


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (8, 8), (7, 10)])
def test_warp_by_nothing_is_the_identity(size):
    x = images(4, 3, *size)
    assert torch.equal(warp(x, *still(4)), x)


def test_warp_steps_by_hand():
    x = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)  # 1 2 3 / 4 5 6 / 7 8 9
    angles, offsets, flips = still(1)
    assert warp(x, angles, offsets, ~flips)[0, 0].tolist() == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    # Cropping one row lower and two columns further right: content moves up by 1 and left by 2.
    moved = torch.tensor([[5, 6]])
    assert warp(x, angles, moved, flips)[0, 0].tolist() == [[6, 0, 0], [9, 0, 0], [0, 0, 0]]
    # The flip comes after the crop.
    assert warp(x, angles, moved, ~flips)[0, 0].tolist() == [[0, 0, 6], [0, 0, 9], [0, 0, 0]]
    # A quarter turn counter-clockwise: the right column becomes the top row.
    assert warp(x, angles + 90, offsets, flips)[0, 0].tolist() == [[3, 6, 9], [2, 5, 8], [1, 4, 7]]


def test_augment_draws_over_the_whole_published_range():
    x = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 255  # the centre: rotation leaves it, crop and flip move it
    where = augment(x, torch_rng(0)).view(4000, 81).argmax(dim=1)
    for place in (where // 9, where % 9):  # rows, columns
        counts = torch.bincount(place, minlength=9)
        assert (counts - 4000 / 9).abs().max() < 4 * math.sqrt(4000 / 9)
    assert torch.equal(augment(x, torch_rng(0)), augment(x, torch_rng(0)))
    flipped = augment(torch.arange(1, 33, dtype=torch.uint8).expand(1000, 1, 32, 32), torch_rng(0))
    share = (
        (flipped[:, 0, 16, 12] > flipped[:, 0, 16, 20]).double().mean()
    )  # columns fall instead of rise
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(1000)


def test_augment_leaves_its_input_and_takes_an_empty_batch():
    x = images(3, 3, 8, 8)
    before = x.clone()
    augment(x, torch_rng(0))
    assert torch.equal(x, before)
    assert augment(x[:0], torch_rng(0)).shape == (0, 3, 8, 8)


def test_normalize_by_hand():
    x = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)  # 0, 1 and 0.2, 0.4
    out = normalize(x, (0.5, 0.2), (0.25, 0.1))
    assert out.dtype == torch.float32
    assert out.flatten().tolist() == pytest.approx([-2, 2, 0, 2], abs=1e-6)
    assert normalize(x, (), ()).flatten().tolist() == pytest.approx([0, 1, 0.2, 0.4])


def test_normalize_of_a_table_and_of_a_series():
    table = torch.tensor([[1.0, 10.0], [3.0, 30.0], [2.0, 20.0]])
    assert normalize(table, (2.0, 20.0), (1.0, 5.0)).tolist() == [[-1, -2], [1, 2], [0, 0]]
    series = table.T[None]  # [1, channels, time]
    assert normalize(series, (2.0, 20.0), (1.0, 5.0)).tolist() == [[[-1, 1, 0], [-2, 2, 0]]]


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_indices_stay_integers(dtype):
    x = torch.tensor([[0, 7], [300, 2]], dtype=dtype)
    out = normalize(x, (), ())
    assert (out.dtype, out.tolist()) == (torch.int64, [[0, 7], [300, 2]])
    assert normalize(x, (1.0, 2.0), (2.0, 1.0)).tolist() == [
        [-0.5, 5],
        [149.5, 0],
    ]  # with a mean they are quantities


def test_normalize_of_floats():
    x = torch.tensor([[[[0.25]], [[-3.0]]]], dtype=torch.float64)
    passed = normalize(x, (), ())
    assert (passed.dtype, passed.flatten().tolist()) == (torch.float32, [0.25, -3])
    single = x.float()
    assert normalize(single, (0.5, 0.0), (0.5, 2.0)).flatten().tolist() == [-0.5, -1.5]
    assert single.flatten().tolist() == [0.25, -3]  # the input is not changed
