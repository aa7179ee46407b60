"""One direction of the traffic, as a plan states it: a codec, its bits, and which tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from fedwsq.codecs import CODECS, BitPolicy, Codec, Fixed, Float32
from fedwsq.codecs.base import Steps, name_of
from fedwsq.codecs.measure import normal_error, normal_zeros
from fedwsq.codecs.rates import as_sent
from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Rate, Shapes


def published(shapes: Shapes) -> list[str]:
    """Every convolution but the first, the stem: norms, stem and classifier travel as they are."""
    convolutions = [name for name, shape in shapes.items() if len(shape) >= 3]
    return convolutions[1:]


def weights(shapes: Shapes) -> list[str]:
    """Every tensor with two dimensions or more: all weights, no biases and no norms."""
    return [name for name, shape in shapes.items() if len(shape) >= 2]


def everything(shapes: Shapes) -> list[str]:
    return list(shapes)


MAX_VOTERS = 256  # that can be counted in a round: sums of their logarithms fit 32 bits

Select = Literal["published", "weights", "all"]
Spread = Literal["elements", "tensors"]
SELECTS: dict[str, Callable[[Shapes], list[str]]] = {
    "published": published,
    "weights": weights,
    "all": everything,
}


@dataclass(frozen=True)
class Link:
    """A codec, who decides its bits, and the tensors it takes; the `rest` has a codec of its own.

    A codec with a single rate leaves nothing to decide: it runs at that rate whatever `bits` says.
    What `bits` grants is a mean over all coded elements. With `spread = "elements"` each has just
    that; with "tensors" the elements of small tensors have more and those of large ones less
    (`codecs.rates.spread_rates`), which needs a codec that has every rate of an interval.
    With `error_feedback` what a code lost is added to what its sender codes next (Seide et al.,
    2014; arXiv:1901.09847).
    """

    codec: Codec = Float32()
    bits: BitPolicy = Fixed()
    select: Select = "published"
    rest: Codec = Float32()
    spread: Spread = "elements"
    error_feedback: bool = False

    def __post_init__(self) -> None:
        if self.select not in get_args(Select):
            raise ConfigError(f"select is {self.select!r}; it can be {', '.join(SELECTS)}")
        if self.spread not in get_args(Spread):
            raise ConfigError(f"spread is {self.spread!r}; it can be elements, tensors")
        if self.spread == "tensors" and self.codec.rates.fixed_length:
            raise ConfigError(
                f"spread = tensors needs a codec of any rate, such as ecq; {name_of(self.codec)} "
                f"offers {self.codec.rates}; use another codec, or spread=elements"
            )
        if self.rest.rates.only is None:
            single = [name for name, codec in CODECS.items() if codec().rates.only is not None]
            raise ConfigError(f"rest needs a codec with a single rate: one of {', '.join(single)}")
        only = self.codec.rates.only
        if only is not None:
            object.__setattr__(self, "bits", self.bits.at(only))
        for rate in self.bits.grants:
            self.require_rate(rate)
        if self.error_feedback:
            self.require_contraction("error_feedback")

    @property
    def lossless(self) -> bool:
        """Whether everything arrives as it was sent."""
        return isinstance(self.codec, Float32) and isinstance(self.rest, Float32)

    def _lowest_rates(self) -> tuple[Rate, ...]:
        """Of a tensor; where rates are spread, a large one may have the least there is."""
        if self.spread == "tensors":
            return self.codec.rates.listed[:1]
        return self.bits.grants

    def require_rate(self, rate: Rate) -> None:
        self.codec.rates.require(rate, name_of(self.codec))

    def require_contraction(self, what: str) -> None:
        """Refuse codes that lose more than there is: what they lost would be coded again, and
        grow.
        """
        used = [(self.codec, rate) for rate in self._lowest_rates()]
        used += [(self.rest, rate) for rate in self.rest.rates.listed]
        for codec, rate in used:
            lost = normal_error(codec, rate)
            if lost >= 1:
                raise ConfigError(
                    f"{what} needs a code that loses less than it is given; {name_of(codec)} at "
                    f"{rate:g} bits loses {lost:.3g} times that on normal data: use more bits, or "
                    "a codec such as sign, danuq or eden"
                )

    def require_dense(self, what: str) -> None:
        """Refuse codes that leave most values at zero: so are the medians of each coordinate."""
        for rate in self._lowest_rates():
            zeros = normal_zeros(self.codec, rate)
            if zeros > 0.5:
                raise ConfigError(
                    f"{what} looks at each coordinate by itself, and {name_of(self.codec)} at "
                    f"{rate:g} bits leaves {100 * zeros:.0f} % of them at zero: use more bits, "
                    "another codec, or combine=centred_clipping"
                )


@dataclass(frozen=True)
class Uplink(Link):
    """A link from each client. With `counts`, codes are added up as integers before anything is
    decoded, around scales that the clients of a round agree on first; with `secure` too, under
    masks, so that the server sees no client's update but only their sum.
    """

    counts: bool = False
    secure: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.secure:
            object.__setattr__(self, "counts", True)
        if not self.counts:
            return
        what = "secure" if self.secure else "counts"
        if not isinstance(self.bits, Fixed):
            raise ConfigError(
                f"{what} adds codes up, and codes of different widths do not add up; give all "
                "clients the same, such as bits=1"
            )
        if self.codec.steps(self.bits.bits) is None:
            raise ConfigError(
                f"{what} adds codes up, so all clients need the same even steps around one shared "
                f"scale, which {name_of(self.codec)} at {self.bits.bits:g} bits does not have as "
                'it is set: use danuq at bits=1, or codec={ name = "danuq", levels = "even" } at '
                "other widths, without band, own scales, scale_per or entropy coding"
            )
        if not isinstance(self.rest, Float32):
            raise ConfigError(
                f"{what} sends the rest as fixed-point integers; leave rest at float32"
            )

    @property
    def steps(self) -> Steps:
        """What a code stands for, of a link that counts."""
        assert isinstance(self.bits, Fixed)  # __post_init__ saw to it
        steps = self.codec.steps(self.bits.bits)
        assert steps is not None
        return steps


@dataclass(frozen=True)
class Downlink(Link):
    """A link to all clients at once; float32, the default, codes nothing.

    Mode "model" codes the parameters themselves, with no memory on either side: a codec with
    `scale_per = "channel"` at 8 or 4 bits. Mode "start" codes their difference to what is kept of
    the parameters of round 0, which both ends make from the seed: no memory either, and far fewer
    bits. Mode "chain" codes each round's difference to the public model, which both ends hold: a
    client that was away gets the differences it missed, or the whole public model where that is
    shorter. Whatever a client rebuilt is where it starts from and what its update is relative to;
    the server adds the update to its exact state.
    """

    mode: Literal["model", "start", "chain"] = "model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("model", "start", "chain"):
            raise ConfigError(f"downlink mode is {self.mode!r}; it can be model, start, chain")
        if self.bits.of_round(1) is None:
            raise ConfigError(
                "downlink.bits must be one number, or growing: a broadcast is the same for everyone"
            )
        if self.mode != "model" and self.lossless:
            raise ConfigError(
                f"downlink.mode = {self.mode} codes differences and needs a codec, "
                "such as downlink.codec=danuq"
            )
        if self.mode == "chain":
            self.require_contraction("downlink.mode = chain")
        if self.error_feedback:
            raise ConfigError(
                "downlink.error_feedback has no meaning: mode = chain makes up for what was lost, "
                "model and start have no memory"
            )

    def rate(self, number: int) -> tuple[Rate, ...]:
        """The rate of a round's broadcast, as an order would carry it."""
        rate = self.bits.of_round(number)
        assert rate is not None  # __post_init__ saw to it
        return (as_sent(rate),)
