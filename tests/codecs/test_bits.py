from fedwsq.codecs import BITS, Fixed
from fedwsq.core.types import Key


def test_fixed_gives_everyone_the_same():
    assert BITS["fixed"] is Fixed
    policy = Fixed(bits=4)
    assert {policy(Key(0, round, client), None, {}, {}) for round in (1, 2) for client in (0, 1)} == {4}


def test_fixed_is_float32_by_default():
    assert Fixed()(Key(0, 1, 0), None, {}, {}) == 32
