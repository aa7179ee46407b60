"""The entropy coder: three implementations, one stack of bytes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_tables import at_every_size, in_numpy  # noqa: F401

from fedwsq.codecs import kernels, rans
from fedwsq.codecs.rans import SLOTS, Reader, Writer, even_shares, shares_of

LANES = (1, 2, 8, 32, 256)
by_all = pytest.mark.usefixtures("at_every_size")


def some_shares(rng, symbols):
    """Random widths, some of them 0."""
    cuts = np.sort(rng.integers(0, SLOTS + 1, symbols - 1))
    return shares_of(np.diff(cuts, prepend=0, append=SLOTS))


def write(pushes, lanes):
    writer = Writer(lanes)
    for symbols, shares in pushes:
        writer.push(symbols, shares)
    return writer.code()


def read(code, pops, lanes):
    reader = Reader(code, lanes)
    return [reader.pop(count, shares).tolist() for count, shares in pops]


def draw(rng, shares, count):
    return shares.owners[rng.integers(0, SLOTS, count)]


def test_three_symbols_by_hand():
    # Slots 0 to 8191, to 12287 and to 16383. From 0: 2 makes 12288; 1 makes 3 x 16384 + 0 + 8192,
    # as 12288 = 3 x 4096; 0 makes 7 x 16384 + 0, as 57344 = 7 x 8192.
    shares = shares_of(np.array([8192, 4096, 4096]))
    symbols = np.array([0, 1, 2], np.uint16)
    code = write([(symbols, shares)], 1)
    assert code == (7 * 16384).to_bytes(3, "little")
    assert read(code, [(3, shares)], 1) == [[0, 1, 2]]


def test_a_word_by_hand():
    # One slot of 2^14 for symbol 1: from 0 to 16383, to 16383 x 16384 + 16383 = 2^28 - 1. That is
    # at least 2^18, so its low 16 bits go: 4095 is left, which becomes 4095 x 16384 + 16383.
    shares = shares_of(np.array([SLOTS - 1, 1]))
    code = write([(np.ones(3, np.uint16), shares)], 1)
    assert code == b"\xff\xff" + (4095 * 16384 + 16383).to_bytes(4, "little")


def test_two_states_by_hand():
    # Each starts at 2^16 = 8 x 8192: symbol 1 of two halves makes 8 x 16384 + 8192.
    halves = even_shares(1)
    code = write([(np.array([0, 1], np.uint16), halves)], 2)
    states = [8 * 16384, 8 * 16384 + 8192]
    assert code == b"".join(state.to_bytes(4, "little") for state in states).rstrip(b"\0")


@by_all
@pytest.mark.parametrize("lanes", LANES)
def test_all_three_write_and_read_the_same(lanes):
    rng = np.random.default_rng(lanes)
    for count in (0, 1, 2, 31, 255, 256, 257, 3000):
        shares = [some_shares(rng, int(symbols)) for symbols in rng.integers(1, 400, 3)]
        pushes = [(draw(rng, each, count), each) for each in shares]
        code = write(pushes, lanes)
        assert code == in_numpy(lambda: write(pushes, lanes))  # noqa: B023
        pops = [(count, each) for each in reversed(shares)]
        found = read(code, pops, lanes)
        assert found == in_numpy(lambda: read(code, pops, lanes))  # noqa: B023
        assert found == [symbols.tolist() for symbols, _ in reversed(pushes)]


def test_rows_and_single_symbols_write_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    shares = some_shares(rng, 50)
    pushes = [(draw(rng, shares, 5000), shares)]
    for lanes in LANES:
        codes = []
        found = []
        for many in (1, 10_000):
            monkeypatch.setattr(rans, "MANY_LANES", many)
            codes.append(in_numpy(lambda: write(pushes, lanes)))  # noqa: B023
            found.append(in_numpy(lambda: read(codes[-1], [(5000, shares)], lanes)))  # noqa: B023
        assert codes[0] == codes[1]
        assert found[0] == found[1] == [pushes[0][0].tolist()]


@pytest.mark.parametrize("lanes", LANES)
def test_the_code_is_as_long_as_its_symbols_are_worth(lanes):
    rng = np.random.default_rng(1)
    widths = np.array([12_000, 3000, 1000, 300, 83, 1])
    shares = shares_of(widths)
    symbols = draw(rng, shares, 100_000)
    bits = int(rans.costs()[widths[symbols]].sum()) / rans.COST_UNIT
    assert bits == pytest.approx(-np.log2(widths[symbols] / SLOTS).sum(), rel=1e-6)
    overhead = len(write([(symbols, shares)], lanes)) - bits / 8
    assert overhead <= 4 * lanes + 4
    assert overhead >= (2 * lanes if lanes > 1 else 0)


def test_zeros_alone_take_nothing():
    assert write([(np.zeros(500, np.uint16), shares_of(np.array([9000, 7384])))], 1) == b""


@by_all
@settings(max_examples=200)
@given(code=st.binary(max_size=300), lanes=st.sampled_from(LANES), count=st.integers(0, 700))
def test_any_bytes_are_read_to_the_end(code, lanes, count):
    shares = some_shares(np.random.default_rng(count), 40)
    pops = [(count, shares), (count // 3, even_shares(10)), (count, shares)]
    found = read(code, pops, lanes)
    assert found == in_numpy(lambda: read(code, pops, lanes))
    assert all(shares.widths[symbol] > 0 for symbol in found[0] + found[2])


def test_what_does_not_fit_never_reaches_the_loops():
    pytest.importorskip("numba")
    shares = even_shares(1)
    symbols = np.array([0, 2], np.uint16)
    states = np.zeros(1, np.int64)
    none = np.empty(0, np.uint16)
    end = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="symbols that have no share"):
        kernels.push(symbols, shares, states)
    with pytest.raises(ValueError, match="a power of two, not 3"):
        kernels.push(symbols[:1], shares, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="no more words than there are"):
        kernels.pop(symbols, shares, states, none, end + 1)
    lacking = replace(shares, widths=shares.widths[:1], starts=shares.starts[:1])
    with pytest.raises(ValueError, match="slots of symbols that have no share"):
        kernels.pop(symbols, lacking, states, none, end)
    with pytest.raises(ValueError, match="symbols without a value"):
        kernels.spread(symbols, np.zeros(2, np.float32), np.zeros(2, np.float32), True)
    with pytest.raises(ValueError, match="2 symbols are not 3 elements"):
        kernels.index(np.zeros(3, np.float32), np.float32(1), symbols, end)
    with pytest.raises(ValueError, match="1 tallies are not 335 symbols"):
        kernels.index(np.zeros(2, np.float32), np.float32(1), symbols, end)
