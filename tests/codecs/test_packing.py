import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwsq.codecs.packing import count_codes, pack, packed_bytes, unpack
from fedwsq.core.errors import ConfigError, MessageError

WIDTHS = range(1, 9)


def bit_string_reference(codes, bits):
    """The layout, literally: a string of bits, lowest first, cut into bytes."""
    stream = "".join(format(code, f"0{bits}b")[::-1] for code in codes)
    stream += "0" * (-len(stream) % 8)
    return bytes(int(stream[i : i + 8][::-1], 2) for i in range(0, len(stream), 8))


def random_codes(bits, count, seed=0):
    return np.random.default_rng(seed).integers(2**bits, size=count, dtype=np.uint8)


@pytest.mark.parametrize("bits", WIDTHS)
@settings(deadline=None)
@given(data=st.data())
def test_round_trip_and_layout(bits, data):
    count = data.draw(st.integers(0, 1000))
    seed = data.draw(st.integers(0, 2**32))
    codes = random_codes(bits, count, seed)
    packed = pack(codes, bits)
    assert packed == bit_string_reference(codes.tolist(), bits)
    assert len(packed) == packed_bytes(count, bits)
    unpacked = unpack(packed, bits, count)
    assert unpacked.dtype == np.uint8
    assert unpacked.tolist() == codes.tolist()


@pytest.mark.parametrize("bits", WIDTHS)
def test_round_trip_at_every_length(bits):
    for count in range(1001):
        codes = random_codes(bits, count, count)
        assert np.array_equal(unpack(pack(codes, bits), bits, count), codes)


def test_layout_by_hand():
    # 1 | 0 << 1 | 1 << 2 | 1 << 3 = 0b1101, and one more bit in a second byte.
    assert pack(np.uint8([1, 0, 1, 1, 0, 0, 0, 0, 1]), 1) == bytes([0b1101, 0b1])
    # 3 | 0 << 2 | 1 << 4 | 2 << 6 = 3 + 16 + 128.
    assert pack(np.uint8([3, 0, 1, 2]), 2) == bytes([147])
    # 5 | 7 << 3 | (1 & 3) << 6 = 5 + 56 + 64; what remains of 1 is 0, then 6 << 1 = 12.
    assert pack(np.uint8([5, 7, 1, 6]), 3) == bytes([125, 12])
    # 12 | 1 << 4 = 28, then 8 | 15 << 4 = 248.
    assert pack(np.uint8([12, 1, 8, 15]), 4) == bytes([28, 248])


def test_nothing_takes_no_bytes():
    for bits in WIDTHS:
        assert pack(np.uint8([]), bits) == b""
        assert len(unpack(b"", bits, 0)) == 0


def test_packing_leaves_its_input_alone():
    for bits in WIDTHS:
        codes = random_codes(bits, 37)
        before = codes.copy()
        pack(codes, bits)
        assert np.array_equal(codes, before)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 5, 8, 9])
@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_length_is_refused(bits, count, change):
    size = packed_bytes(count, bits) + change
    if size >= 0:
        with pytest.raises(
            MessageError,
            match=f"{count} codes of {bits} bits take {size - change} bytes, not {size}",
        ):
            unpack(bytes(size), bits, count)


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_dirty_padding_bit_is_refused(bits):
    for count in range(1, 9):
        packed = pack(random_codes(bits, count), bits)
        for spare in range(count * bits, 8 * len(packed)):
            dirty = packed[:-1] + bytes([packed[-1] | 1 << spare % 8])
            with pytest.raises(MessageError, match="must be zero"):
                unpack(dirty, bits, count)


def test_a_code_too_large_for_its_width_is_refused():
    with pytest.raises(ValueError, match="code 4 does not fit in 2 bits"):
        pack(np.uint8([0, 4]), 2)


@pytest.mark.parametrize("bits", [0, 9, -1])
def test_a_width_outside_1_to_8_is_refused(bits):
    with pytest.raises(ConfigError, match=f"1 to 8 bits, not {bits}"):
        packed_bytes(4, bits)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1000, 2**15 + 3])
def test_codes_are_counted_as_they_come(bits, count):
    codes = random_codes(bits, count, seed=bits)
    expected = [int((codes == code).sum()) for code in range(2**bits)]
    assert count_codes(pack(codes, bits), bits, count).tolist() == expected
