"""Settings of a link that cannot work are refused where they are made."""

import pytest

from fedwsq.codecs import CODECS, Danuq, Ecq, Fixed, Float32
from fedwsq.core.errors import ConfigError
from fedwsq.wire import Link


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Link(Danuq(), Fixed(3)), r"danuq has no 3-bit rate; it offers 1, 2, 4$"),
        (lambda: Link(Danuq()), r"danuq has no 32-bit rate; it offers 1, 2, 4$"),
        (
            lambda: Link(Danuq("optimal"), Fixed(9)),
            r"danuq has no 9-bit rate; it offers 1, 2, 3, 4, 5, 6, 7, 8$",
        ),
        (lambda: Link(Ecq(), Fixed(9)), r"ecq has no 9-bit rate; it offers 0\.1 to 8$"),
        (
            lambda: Link(Danuq(), Fixed(4), "convolutions"),
            r"'convolutions'; it can be published, weights, all$",
        ),
        (
            lambda: Link(Danuq(), Fixed(4), rest=Danuq()),
            r"rest needs .* a single rate: one of danuq4, danuq8, float16, float32, sign$",
        ),
        (
            lambda: Link(Danuq(), Fixed(4), spread="tensors"),
            r"needs a codec of any rate, such as ecq; danuq offers 1, 2, 4; use another",
        ),
        (
            lambda: Link(Ecq(), Fixed(4), spread="layers"),
            r"spread is 'layers'; it can be elements, tensors$",
        ),
    ],
)
def test_links_that_cannot_be(build, text):
    with pytest.raises(ConfigError, match=text):
        build()


def test_a_codec_with_a_single_rate_leaves_nothing_to_decide():
    link = Link(Float32(), Fixed(4))
    assert link.bits == Fixed(32)
    assert link == Link()


@pytest.mark.parametrize(
    ("link", "lossless"),
    [
        (Link(), True),
        (Link(select="all"), True),
        (Link(Danuq(), Fixed(4)), False),
        (Link(rest=CODECS["danuq8"]()), False),
    ],
)
def test_what_is_lossless(link, lossless):
    assert link.lossless == lossless


def test_where_rates_are_spread_the_least_of_them_counts():
    """At 2 bits ecq leaves 41 % at zero; a large tensor of a spread may have far fewer bits."""
    Link(Ecq(), Fixed(2)).require_dense("combine = median")
    with pytest.raises(ConfigError, match=r"ecq at 0\.1 bits leaves 9\d % of them at zero"):
        Link(Ecq(), Fixed(2), spread="tensors").require_dense("combine = median")
