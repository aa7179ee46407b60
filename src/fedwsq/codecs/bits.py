"""Bit policies: how many bits a client spends.

Asked on the server; the answer travels in the order.
"""

import copy
import heapq
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeAlias

from torch import Tensor

from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Channel, Key, Rate

Grant: TypeAlias = Rate | Mapping[str, Rate]  # one rate for all coded tensors, or one for each


class Request(NamedTuple):
    """What a policy decides on: one client's work in one round.

    Identities, sizes and channels, never tensors of an update.
    """

    key: Key
    channel: Channel | None  # None when the plan simulates none
    sizes: Mapping[str, int]  # elements of each coded tensor
    shared: Mapping[str, Tensor]  # the codec's shared state of each coded tensor that has one
    offered: Rates  # by the codec
    upload_bytes: Callable[[Grant], int]  # the whole reply; at most, if coded by entropy
    # The part of it that is one coded tensor at a rate; it does not depend on the other tensors.
    tensor_bytes: Callable[[str, Rate], int]
    normal_error: Callable[[Rate], float]  # the codec's squared error on N(0, 1)
    seconds_before_upload: float = 0.0  # download and local work on this channel


class BitPolicy(Protocol):
    """Decides how many bits a client may spend on one piece of work.

    A policy is a frozen dataclass and answers from its settings and the request alone, so that the
    same request has the same answer in any process. One of your own inherits from this and need
    only be callable:

        class Halves(BitPolicy):
            def __call__(self, request):
                return 1 if request.key.client % 2 else 4
    """

    @abstractmethod
    def __call__(self, request: Request) -> Grant | None:
        """The rate or rates for this work, or None: the client sits this round out."""

    @property
    def grants(self) -> tuple[Rate, ...]:
        """Every rate it may grant, so that a link can refuse one early; () if it cannot say."""
        return ()

    def of_round(self, number: int) -> Rate | None:
        """What everyone has in a round; None where clients differ. A broadcast needs one."""
        return None

    def at(self, rate: Rate) -> "BitPolicy":
        """The policy for a codec that has this rate and no other, with nothing left to decide."""
        return self


@dataclass(frozen=True)
class Fixed(BitPolicy):
    """The same rate for everyone, always."""

    bits: float = 32

    def __call__(self, request: Request) -> Rate:
        return self.bits

    @property
    def grants(self) -> tuple[Rate, ...]:
        return (self.bits,)

    def of_round(self, number: int) -> Rate:
        return self.bits

    def at(self, rate: Rate) -> "Fixed":
        return Fixed(rate)


class FromChoices(BitPolicy):
    """What the policies share that grant widths from `choices`, a field that each of them has."""

    choices: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", ascending(self.choices))

    def __call__(self, request: Request) -> Grant | None:
        """What is chosen, once every choice is known to be on offer."""
        for rate in self.choices:
            if rate not in request.offered:
                raise ConfigError(
                    f"choices has {rate:g} bits, which the codec does not; "
                    f"it offers {request.offered}"
                )
        return self.choose(request)

    @abstractmethod
    def choose(self, request: Request) -> Grant | None:
        """A width for this work, or one for each tensor; None: the client sits out."""

    @property
    def grants(self) -> tuple[Rate, ...]:
        return self.choices

    def at(self, rate: Rate) -> Self:
        # Not a new one: whoever made this has checked the other settings.
        narrowed = copy.copy(self)
        object.__setattr__(narrowed, "choices", ascending((rate,)))
        return narrowed


@dataclass(frozen=True)
class PerClient(FromChoices):
    """Each client draws its width once and keeps it, uniformly from `choices`.

    The paper's fixed bit allocation (FBA). The mean of 1, 2 and 4 is 7/3 bits.
    """

    choices: tuple[float, ...] = (1, 2, 4)

    def choose(self, request: Request) -> Rate:
        # Without the round: the same draw every time.
        drawn = derive(request.key.seed, "bits", request.key.client)
        return self.choices[drawn % len(self.choices)]


@dataclass(frozen=True)
class PerRound(FromChoices):
    """Each client draws a width anew whenever it takes part: dynamic bit allocation (DBA)."""

    choices: tuple[float, ...] = (1, 2, 4)

    def choose(self, request: Request) -> Rate:
        drawn = derive(request.key.seed, "bits", request.key.round, request.key.client)
        return self.choices[drawn % len(self.choices)]


@dataclass(frozen=True)
class Growing(FromChoices):
    """The smallest width first, the next one after every so many rounds, the largest to the end."""

    every: int = 0  # rounds; must be set
    choices: tuple[float, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ConfigError(
                f"growing every is {self.every}, must be at least 1; "
                "set after how many rounds the next width is due, such as 50"
            )

    def choose(self, request: Request) -> Rate:
        return self.of_round(request.key.round)

    def of_round(self, number: int) -> Rate:
        widened = max(number - 1, 0) // self.every
        return self.choices[min(widened, len(self.choices) - 1)]


@dataclass(frozen=True)
class Bandwidth(FromChoices):
    """The largest width whose whole reply arrives by the deadline, counted from the round's start.

    A client that is too slow even for the smallest sits the round out.
    """

    deadline_seconds: float = 0.0  # must be set
    choices: tuple[float, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.deadline_seconds < math.inf:
            raise ConfigError(
                f"bandwidth deadline_seconds is {self.deadline_seconds:g}, must be above 0; "
                "set how long a round may take, such as 10"
            )

    def choose(self, request: Request) -> Rate | None:
        channel = request.channel
        if channel is None:
            raise ConfigError(
                "bandwidth bits go by each client's channel and this plan has none; "
                "set channels to lognormal or trace, or bits to fixed, per_client or per_round"
            )
        before = request.seconds_before_upload + channel.latency_seconds
        for rate in reversed(self.choices):
            upload = request.upload_bytes(rate) / channel.up_bytes_per_second
            if before + upload <= self.deadline_seconds:
                return rate
        return None


@dataclass(frozen=True)
class Budget(FromChoices):
    """Bits for each tensor, so that a client's whole reply takes at most `bytes` and loses little.

    The expected loss of a tensor is numel * scale^2 * (the codec's error on N(0, 1)), with the
    scale that all clients share. From the smallest width everywhere, the step that saves most loss
    for each further byte is taken again and again, as long as one fits; no other spending beats
    that by more than one step. While no scale is known, all tensors count the same.
    """

    bytes: int = 0  # must be set
    choices: tuple[float, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bytes < 1:
            raise ConfigError(
                f"budget bytes is {self.bytes}, must be at least 1; "
                "set the bytes of a client's reply"
            )

    def choose(self, request: Request) -> Mapping[str, Rate]:
        smallest = self.choices[0]
        granted = dict.fromkeys(request.sizes, smallest)
        spent = request.upload_bytes(granted)
        if spent > self.bytes:
            raise ConfigError(
                f"a budget of {self.bytes} bytes is too small: "
                f"a reply takes {spent} at {smallest:g} bits; "
                "raise bytes, offer a smaller width in choices, or code more tensors with select"
            )
        prices = self._prices(request)
        heap: list[Step] = []
        for name in request.sizes:
            heap += prices.steps(name, smallest)
        heapq.heapify(heap)
        while heap:
            step = heapq.heappop(heap)
            if granted[step.name] != step.at:
                continue  # it has gone up since
            if spent + step.more_bytes > self.bytes:
                continue  # and it never will fit: replies only grow
            spent += step.more_bytes
            granted[step.name] = step.to
            for further in prices.steps(step.name, step.to):
                heapq.heappush(heap, further)
        return granted

    def _prices(self, request: Request) -> "Prices":
        energy = energies(request)
        errors = {rate: request.normal_error(rate) for rate in self.choices}
        takes = {}
        for name in request.sizes:
            takes[name] = {rate: request.tensor_bytes(name, rate) for rate in self.choices}
        return Prices(energy, errors, takes)


class Step(NamedTuple):
    """More bits for one tensor.

    Steps sort by what a byte changes in the loss, the best first; names settle a tie.
    """

    change_per_byte: float
    name: str
    at: Rate
    to: Rate
    more_bytes: int


class Prices(NamedTuple):
    """What the widths of each tensor take and lose."""

    energy: Mapping[str, float]  # what an error of 1 loses
    errors: Mapping[Rate, float]  # on N(0, 1)
    takes: Mapping[str, Mapping[Rate, int]]  # bytes

    def steps(self, name: str, at: Rate) -> Iterator[Step]:
        """The ways to go on from a width; one that gains nothing is none."""
        for to in self.errors:
            gain = self.energy[name] * (self.errors[at] - self.errors[to])
            if to <= at or gain <= 0:
                continue
            cost = self.takes[name][to] - self.takes[name][at]
            change = -gain / cost if cost > 0 else -math.inf
            yield Step(change, name, at, to, cost)


def energies(request: Request) -> dict[str, float]:
    """The expected squared norm of each coded tensor: numel * the mean square of its scales."""
    missing = sorted(request.sizes.keys() - request.shared.keys())
    if missing:
        raise ConfigError(
            f"budget bits weigh tensors by the codec's shared scales, and {missing[0]} has none; "
            "use a codec that shares them, such as danuq, or bits fixed, per_client or per_round"
        )
    squares = {name: float(request.shared[name].double().square().mean()) for name in request.sizes}
    if not any(squares.values()):  # not calibrated yet
        squares = dict.fromkeys(squares, 1.0)
    return {name: size * squares[name] for name, size in request.sizes.items()}


def ascending(choices: Sequence[float]) -> tuple[float, ...]:
    """The widths in order, each once; floats, as a config gives them back."""
    if not choices or not all(0 < rate < math.inf for rate in choices):  # NaN fails too
        raise ConfigError(
            f"choices is {list(choices)}, must be positive numbers of bits, such as [1, 2, 4]"
        )
    return tuple(sorted({float(rate) for rate in choices}))


BITS: dict[str, type[BitPolicy]] = {
    "fixed": Fixed,
    "per_client": PerClient,
    "per_round": PerRound,
    "growing": Growing,
    "bandwidth": Bandwidth,
    "budget": Budget,
}
