import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.codecs.elias_fano import (
    Layout,
    index_bytes,
    layout,
    pack_indices,
    unpack_indices,
)
from fedwsq.core.errors import MessageError


def indices(*values):
    return np.array(values, np.int64)


def plain(chosen, limit):
    """The same code by the book, one bit at a time."""
    count = len(chosen)
    width = max(math.floor(math.log2(limit / count)), 0)
    low = [(index >> bit) & 1 for index in chosen for bit in range(width)]
    high = [0] * (count + ((limit - 1) >> width))
    for j, index in enumerate(chosen):
        high[(index >> width) + j] = 1
    pad = lambda bits: bits + [0] * (-len(bits) % 8)
    stream = pad(low) + pad(high)
    return bytes(
        sum(bit << k for k, bit in enumerate(stream[i : i + 8])) for i in range(0, len(stream), 8)
    )


def test_by_hand():
    # 16 / 3 leaves 2 low bits: 1 -> (0, 01), 6 -> (1, 10), 15 -> (3, 11).
    # Low, lowest bit first: 10 01 11, then 00.
    # High: bits 0 + 0, 1 + 1 and 3 + 2 of 3 + 3: 1 0 1 0 0 1, then 00.
    assert layout(3, 16) == Layout(width=2, low=6, high=6)
    assert index_bytes(3, 16) == 2
    assert pack_indices(indices(1, 6, 15), 16) == bytes([0b111001, 0b100101])
    assert unpack_indices(bytes([0b111001, 0b100101]), 3, 16).tolist() == [1, 6, 15]


@given(data=st.data(), limit=st.integers(1, 3000))
def test_any_set_of_indices_survives_at_the_stated_length(data, limit):
    chosen = sorted(
        data.draw(st.sets(st.integers(0, limit - 1), min_size=1, max_size=min(limit, 60)))
    )
    packed = pack_indices(np.array(chosen, np.int64), limit)
    assert packed == plain(chosen, limit)
    assert len(packed) == index_bytes(len(chosen), limit)
    assert unpack_indices(packed, len(chosen), limit).tolist() == chosen


def test_all_none_and_one_of_very_many():
    for limit in (0, 1, 9, 1000):
        everything = np.arange(limit)
        assert np.array_equal(
            unpack_indices(pack_indices(everything, limit), limit, limit), everything
        )
        assert pack_indices(indices(), limit) == b""
        assert unpack_indices(b"", 0, limit).tolist() == []
    for index in (0, 12345, 2**40 - 1):
        packed = pack_indices(indices(index), 2**40)
        assert len(packed) == 6
        assert unpack_indices(packed, 1, 2**40).tolist() == [index]


def test_about_two_bits_an_index_above_the_bound():
    for limit, count in ((10**6, 1000), (10**6, 50_000), (36_864, 67)):
        bound = math.log2(limit / count) + math.log2(
            math.e
        )  # log2 of how many such sets there are, an index
        assert 8 * index_bytes(count, limit) / count < bound + 0.8


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x39", "3 indices below 16 take 2 bytes, not 1"),
        (b"\x39\x25\x00", "3 indices below 16 take 2 bytes, not 3"),
        (b"\x79\x25", "the bits after 3 indices must be zero"),
        (b"\x39\x65", "the bits after 3 indices must be zero"),
        (b"\x39\x05", "the code has 2 indices, not 3"),
        (b"\x39\x2d", "the code has 4 indices, not 3"),
        (b"\x05\x07", "indices must ascend strictly and be below 16"),  # 1, 1, 0
        (b"\x05\x0b", "indices must ascend strictly and be below 16"),  # 1, 1, 4
    ],
)
def test_damage_is_found(data, text):
    with pytest.raises(MessageError, match=text):
        unpack_indices(data, 3, 16)


def test_an_index_at_the_limit_is_refused():
    # 13 / 3: 2 low bits; 13 = (3, 01) fits the bits but not the limit.
    packed = pack_indices(indices(1, 6, 12), 13)
    assert unpack_indices(packed, 3, 13).tolist() == [1, 6, 12]
    with pytest.raises(MessageError, match="be below 13"):
        unpack_indices(bytes([packed[0] | 0b010000, packed[1]]), 3, 13)


@given(data=st.binary(min_size=2, max_size=2))
def test_every_valid_code_is_the_one_that_is_written(data):
    try:
        found = unpack_indices(data, 3, 16)
    except MessageError:
        return
    assert pack_indices(found, 16) == data
