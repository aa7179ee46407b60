import math

import numpy as np
import pytest

from fedwsq.codecs import Packet, Uq
from fedwsq.codecs.base import rows_of
from fedwsq.codecs.groups import (
    Groups,
    largest,
    make_groups,
    mean_magnitude,
    norm,
    self_scale,
    survey,
)
from fedwsq.codecs.kernels import Scales
from fedwsq.core.errors import ConfigError, MessageError

X = np.float32([3, -4, 1, 3, 5, 5, -2])


def deviation(rows):
    return survey(rows).std


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        (largest, [4, 3, 5, 2]),
        (mean_magnitude, [3.5, 2, 5, 2]),
        (norm, [5, math.sqrt(10), math.sqrt(50), 2]),
        (
            deviation,
            [math.sqrt(24.5), math.sqrt(2), 0, 2],
        ),  # deviations +-3.5 and +-1; a single one has |x|
        (self_scale, [math.sqrt(24.5), math.sqrt(2), 5, 2]),  # equal ones have |x| too
    ],
)
def test_statistics_of_blocks_by_hand(statistic, expected):
    groups = make_groups(7, 1, "block", 2)
    assert groups == Groups(4, 2)
    found = groups.measure(X, statistic)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx(expected)
    spread = Scales(found, groups.size).spread(7)
    assert spread.tolist() == pytest.approx([found[k // 2] for k in range(7)])


@pytest.mark.parametrize("statistic", [largest, mean_magnitude, norm, deviation, self_scale])
def test_statistics_of_hardly_anything(statistic):
    whole = make_groups(0, 1, "tensor", 64)
    assert whole.measure(np.zeros(0, np.float32), statistic).tolist() == [0.0]
    for groups in (
        make_groups(6, 1, "tensor", 64),
        make_groups(6, 2, "channel", 64),
        make_groups(6, 1, "block", 4),
    ):
        assert groups.measure(np.zeros(6, np.float32), statistic).tolist() == [0.0] * groups.count


def test_no_scale_is_beyond_what_a_receiver_takes():
    x = np.full(1000, 9e19, np.float32)
    (found,) = make_groups(1000, 1, "tensor", 64).measure(x, norm).tolist()
    assert found == pytest.approx(1e20)
    assert found <= 1e20


@pytest.mark.parametrize(
    ("numel", "rows", "scale_per", "block", "expected"),
    [
        (12, 3, "tensor", 5, Groups(1, 12)),
        (12, 3, "channel", 5, Groups(3, 4)),
        (12, 3, "block", 5, Groups(3, 5)),
        (10, 1, "block", 5, Groups(2, 5)),
        (4, 1, "block", 5, Groups(1, 5)),
        (0, 1, "block", 5, Groups(1, 0)),
        (0, 1, "channel", 5, Groups(1, 0)),
    ],
)
def test_groups_follow_from_size_and_settings(numel, rows, scale_per, block, expected):
    assert make_groups(numel, rows, scale_per, block) == expected


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((), 1), ((5,), 1), ((5, 2), 5), ((5, 2, 3, 3), 5), ((1, 7), 1), ((0, 3), 1), ((3, 0), 1)],
)
def test_rows_are_output_channels(shape, rows):
    assert rows_of(shape) == rows


def test_what_is_refused():
    Uq(scale_per="block", block=2)
    with pytest.raises(
        ConfigError, match='uq scale_per = "rows" is unknown; it is "tensor", "channel" or "block"'
    ):
        Uq(scale_per="rows")
    with pytest.raises(
        ConfigError, match="uq block = 0 is out of range; a block has 2 to 1048576 elements"
    ):
        Uq(block=0)
    blocks = Uq(scale_per="block", block=4)
    packet = Packet(b"", (1.0, 2.0), 4, 8)
    blocks.check_side(packet)
    with pytest.raises(MessageError, match=r"a uq packet has 2 side value\(s\), its scales, not 1"):
        blocks.check_side(packet._replace(side=(1.0,)))
