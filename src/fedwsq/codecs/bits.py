"""Bit policies: how many bits a client spends. Asked on the server; the answer travels in the order."""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from fedwsq.core.errors import ConfigError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Channel, Key, Rate


class Ask(NamedTuple):
    """What a policy decides on: one client's work in one round. Identities, sizes and channels, never tensors."""

    key: Key
    channel: Channel | None  # None when the plan simulates none
    sizes: Mapping[str, int]  # elements of each coded tensor
    shared: Mapping[str, Tensor]  # the codec's shared state of each coded tensor that has one
    rates: frozenset[int] | tuple[float, float]  # what the codec offers
    upload_bytes: Callable[
        [Rate | Mapping[str, Rate]], int
    ]  # the whole reply at such rates; at most, if coded by entropy
    normal_error: Callable[[Rate], float]  # the codec's squared error on N(0, 1)
    seconds_before_upload: float = 0.0  # download and local work on this channel


class BitPolicy(Protocol):
    """One rate, one for each coded tensor, or None: the client sits this round out."""

    def __call__(self, ask: Ask) -> Rate | Mapping[str, Rate] | None:
        """The rates for this piece of work."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same rate for everyone, always."""

    bits: float = 32

    def __call__(self, ask: Ask) -> Rate:
        """`bits`."""
        return self.bits


@dataclass(frozen=True)
class PerClient:
    """Each client draws its width once and keeps it, uniformly from `choices`: the paper's fixed bit allocation (FBA).

    The mean of 1, 2 and 4 is 7/3 bits.
    """

    choices: tuple[float, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", ascending(self.choices))

    def __call__(self, ask: Ask) -> Rate:
        """The client's own width, the same in every round."""
        require_offered(self.choices, ask.rates)
        return self.choices[derive(ask.key.seed, "bits", ask.key.client) % len(self.choices)]


@dataclass(frozen=True)
class PerRound:
    """Each client draws a width anew every time it takes part: the paper's dynamic bit allocation (DBA)."""

    choices: tuple[float, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", ascending(self.choices))

    def __call__(self, ask: Ask) -> Rate:
        """A width for this client in this round."""
        require_offered(self.choices, ask.rates)
        return self.choices[
            derive(ask.key.seed, "bits", ask.key.round, ask.key.client) % len(self.choices)
        ]


@dataclass(frozen=True)
class Bandwidth:
    """The largest width whose whole reply arrives by the deadline, counted from the start of the round.

    A client that is too slow even for the smallest sits the round out.
    """

    deadline_seconds: float = 0.0  # must be set
    choices: tuple[float, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", ascending(self.choices))
        if not 0 < self.deadline_seconds < math.inf:
            raise ConfigError(
                f"bandwidth deadline_seconds is {self.deadline_seconds:g}, must be above 0; "
                "set how long a round may take, such as 10"
            )

    def __call__(self, ask: Ask) -> Rate | None:
        """The largest width that is in time, or None."""
        require_offered(self.choices, ask.rates)
        channel = ask.channel
        if channel is None:
            raise ConfigError(
                "bandwidth bits go by each client's channel and this plan has none; "
                "set channels to lognormal, trace or measured, or bits to fixed, per_client or per_round"
            )
        before = ask.seconds_before_upload + channel.latency_seconds
        for rate in reversed(self.choices):
            if (
                before + ask.upload_bytes(rate) / channel.up_bytes_per_second
                <= self.deadline_seconds
            ):
                return rate
        return None


@dataclass(frozen=True)
class Budget:
    """Bits for each tensor, so that a client's whole reply takes at most `bytes` and loses little.

    The expected loss of a tensor is numel * scale^2 * (the codec's error on N(0, 1)), with the scale that all clients
    share. From the smallest width everywhere, the step that saves most loss for each further byte is taken again and
    again, as long as one fits; no other spending beats that by more than one step. While no scale is known, all tensors
    count the same.
    """

    bytes: int = 0  # must be set
    choices: tuple[float, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", ascending(self.choices))
        if self.bytes < 1:
            raise ConfigError(
                f"budget bytes is {self.bytes}, must be at least 1; set the bytes of a client's reply"
            )

    def __call__(self, ask: Ask) -> Mapping[str, Rate]:
        """A width for each coded tensor."""
        require_offered(self.choices, ask.rates)
        smallest = self.choices[0]
        granted = dict.fromkeys(ask.sizes, smallest)
        least = ask.upload_bytes(granted)
        if least > self.bytes:
            raise ConfigError(
                f"a budget of {self.bytes} bytes is too small: a reply takes {least} at {smallest:g} bits; "
                "raise bytes, offer a smaller width in choices, or code more tensors with select"
            )
        energy = energies(ask)
        # What more a tensor takes at each width; it does not depend on the others.
        extra = {
            name: {smallest: 0}
            | {rate: ask.upload_bytes({**granted, name: rate}) - least for rate in self.choices[1:]}
            for name in ask.sizes
        }
        errors = {rate: ask.normal_error(rate) for rate in self.choices}

        def steps(name: str, at: Rate) -> Iterator[Step]:
            for to in self.choices:
                gain, cost = (
                    energy[name] * (errors[at] - errors[to]),
                    extra[name][to] - extra[name][at],
                )
                if to > at and gain > 0:
                    yield Step(-gain / cost if cost > 0 else -math.inf, name, at, to)

        heap = [step for name in ask.sizes for step in steps(name, smallest)]
        heapq.heapify(heap)
        while heap:
            step = heapq.heappop(heap)
            if granted[step.name] != step.at:
                continue  # it has gone up since
            wider = {**granted, step.name: step.to}
            if ask.upload_bytes(wider) <= self.bytes:  # else it never will: replies only grow
                granted = wider
                for further in steps(step.name, step.to):
                    heapq.heappush(heap, further)
        return granted


class Step(NamedTuple):
    """More bits for one tensor. They sort by what a byte changes in the loss, the best first; names settle a tie."""

    change_per_byte: float
    name: str
    at: Rate
    to: Rate


def energies(ask: Ask) -> dict[str, float]:
    """The expected squared norm of each coded tensor: numel * the mean square of its shared scales."""
    missing = sorted(ask.sizes.keys() - ask.shared.keys())
    if missing:
        raise ConfigError(
            f"budget bits weigh tensors by the codec's shared scales, and {missing[0]} has none; "
            "use a codec that shares them, such as danuq, or bits fixed, per_client or per_round"
        )
    squares = {name: float(ask.shared[name].double().square().mean()) for name in ask.sizes}
    known = any(squares.values())
    return {name: size * (squares[name] if known else 1.0) for name, size in ask.sizes.items()}


def ascending(choices: Sequence[float]) -> tuple[float, ...]:
    """The widths in order, each once; floats, as a config gives them back."""
    if not choices or not all(0 < rate < math.inf for rate in choices):  # NaN fails too
        raise ConfigError(
            f"choices is {list(choices)}, must be positive numbers of bits, such as [1, 2, 4]"
        )
    return tuple(sorted({float(rate) for rate in choices}))


def require_offered(choices: Sequence[float], rates: frozenset[int] | tuple[float, float]) -> None:
    """Refuse a choice that the codec does not have."""
    for rate in choices:
        if isinstance(rates, frozenset):
            fine, offer = rate in rates, ", ".join(map(str, sorted(rates)))
        else:
            fine, offer = rates[0] <= rate <= rates[1], f"{rates[0]:g} to {rates[1]:g}"
        if not fine:
            raise ConfigError(
                f"choices has {rate:g} bits, which the codec does not; it offers {offer}"
            )


BITS: dict[str, type[BitPolicy]] = {
    "fixed": Fixed,
    "per_client": PerClient,
    "per_round": PerRound,
    "bandwidth": Bandwidth,
    "budget": Budget,
}
