"""Means and bands over seeds, and what long lines are thinned to, worked out by hand."""

import numpy as np
import pytest

from fedwsq.federation.record import RoundRecord
from fedwsq.report.curves import columns, curve
from fedwsq.report.looks import COLOURS, look


def row(number: int, accuracy: float | None, up: int = 10, down: int = 30) -> RoundRecord:
    return RoundRecord(
        number,
        test_accuracy=accuracy,
        test_accuracy_ema=accuracy,
        uplink_bytes=up,
        downlink_bytes=down,
    )


def test_a_line_is_the_mean_of_the_seeds_that_got_there():
    first = columns([row(1, 0.2), row(2, 0.4), row(3, 0.6)])
    second = columns([row(1, 0.4, up=30), row(2, 0.6, up=30)])
    found = curve([first, second], "bytes", "accuracy")
    assert found.rounds.tolist() == [1, 2, 3]
    # 40 and 60 bytes a round; the third is of one seed alone.
    assert found.x.tolist() == [50, 100, 120]
    assert found.mean.tolist() == pytest.approx([0.3, 0.5, 0.6])
    assert found.low.tolist() == pytest.approx([0.2, 0.4, 0.6])
    assert found.high.tolist() == pytest.approx([0.4, 0.6, 0.6])
    assert found.seeds.tolist() == [2, 2, 1]


def test_rounds_that_were_not_scored_count_in_bytes_alone():
    found = curve([columns([row(1, None), row(2, 0.5)])], "bytes", "accuracy")
    assert (found.rounds.tolist(), found.x.tolist()) == ([2], [80])


def test_what_no_row_has_is_an_empty_line():
    rows = columns([row(1, 0.5)])
    assert len(curve([rows], "seconds", "accuracy")) == 0
    assert len(curve([rows], "round", "bits")) == 0
    assert len(curve([], "round", "accuracy")) == 0


def test_a_long_line_keeps_its_start_and_its_end():
    rows = columns([row(number, number / 1000) for number in range(1, 1001)])
    whole = curve([rows], "round", "accuracy")
    thin = whole.thinned(200)
    assert len(thin) <= 200
    assert thin.rounds[:50].tolist() == list(range(1, 51))
    assert thin.rounds[-1] == 1000
    assert np.diff(thin.rounds).max() <= 7  # evenly: 999 / 149 and a rounding
    assert whole.thinned(1000) is whole


def test_lines_past_the_colours_are_told_apart_by_dashes():
    looks = [look(number) for number in range(3 * len(COLOURS))]
    assert len(set(looks)) == len(looks)
    assert {each.dash for each in looks[: len(COLOURS)]} == {()}
