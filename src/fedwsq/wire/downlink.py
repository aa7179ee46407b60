"""How the model travels to the clients: whole, or as coded differences of a public model that all can rebuild."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from fedwsq.codecs import Fixed
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.tree import add, sub
from fedwsq.core.types import Key, Vectors
from fedwsq.wire.link import Link, as_sent, only_rate
from fedwsq.wire.message import EVERYONE, MAX_VECTORS, Kind, Packets, Schema, decode

MAX_STEPS = MAX_VECTORS // 2  # differences that an order carries at most


@dataclass(frozen=True)
class Downlink(Link):
    """A link to all clients at once; float32, the default, codes nothing.

    Mode "model" codes the parameters themselves, with no memory on either side: a codec with `scales = "channel"` at 8
    or 4 bits. Mode "chain" codes each round's difference to the public model, which both ends hold: a client that was
    away gets the differences it missed, or the whole public model where that is shorter. Whatever a client rebuilt is
    where it starts from and what its update is relative to; the server adds the update to its exact state.
    """

    mode: Literal["model", "chain"] = "model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("model", "chain"):
            raise ConfigError(f"downlink mode is {self.mode!r}; it can be model, chain")
        if not isinstance(self.bits, Fixed):
            raise ConfigError(
                "downlink.bits must be one number: a broadcast is the same for everyone"
            )
        if self.mode == "chain" and self.lossless:
            raise ConfigError(
                "downlink.mode = chain codes differences and needs a codec, such as downlink.codec=danuq"
            )
        if self.mode == "chain":
            self.require_contraction("downlink.mode = chain")
        if self.error_feedback:
            raise ConfigError(
                "downlink.error_feedback has no meaning: mode = chain makes up for what was lost, model has no memory"
            )

    @property
    def chained(self) -> bool:
        """Whether clients rebuild the model from differences."""
        return self.mode == "chain" and not self.lossless

    @property
    def rate(self) -> tuple[float, ...]:
        """The rate of every broadcast, as an order would carry it."""
        fixed = only_rate(self.codec)
        return (
            as_sent(
                self.bits.bits if fixed is None and isinstance(self.bits, Fixed) else fixed or 32.0
            ),
        )


class Public(NamedTuple):
    """The model that clients can rebuild after a round, and the coded differences of the rounds up to it."""

    vectors: Vectors
    steps: Mapping[int, bytes]  # round -> the broadcast that carried its difference


def step_forward(
    link: Downlink, public: Public | None, target: Vectors, key: Key, schema: Schema
) -> tuple[Vectors, Packets]:
    """The public model of a round, and the coded difference that leads there; the first one is the target itself."""
    if public is None:
        return {vector: dict(params) for vector, params in target.items()}, {}
    difference = {vector: sub(params, public.vectors[vector]) for vector, params in target.items()}
    packets = link.send(difference, {}, key, link.rate, schema).packets
    return apply_step(link, public.vectors, packets, key, schema), named_by_round(
        packets, key.round
    )


def apply_step(
    link: Downlink, vectors: Vectors, packets: Packets, key: Key, schema: Schema
) -> Vectors:
    """The public model after one more difference: the same additions at both ends, so the same bits."""
    decoded = link.receive(packets, {}, key, schema)
    return {vector: add(params, decoded[vector]) for vector, params in vectors.items()}


def rebuild(
    link: Downlink, held: Vectors, steps: Packets, first: int, last: int, seed: int, schema: Schema
) -> Vectors:
    """The public model of round `last` from the one held after round `first`, and the differences in between."""
    by_round = split_by_round(steps)
    # The number first: a round from elsewhere may be any, and a range of that many is not made.
    if len(by_round) != last - first or sorted(by_round) != list(range(first + 1, last + 1)):
        raise MessageError(
            f"differences of rounds {sorted(by_round)}, expected {first + 1} to {last}"
        )
    for number in range(first + 1, last + 1):
        link.check(by_round[number], tuple(held), link.rate, schema)
        held = apply_step(link, held, by_round[number], Key(seed, number, EVERYONE), schema)
    if not all(torch.isfinite(x).all() for params in held.values() for x in params.values()):
        raise MessageError("the differences lead to a model that is not finite")
    return held


def missed(steps: Mapping[int, Packets], accepted: int, last: int) -> Packets | None:
    """The differences of the rounds after `accepted`, before `last`, if they are all at hand and few enough."""
    rounds = range(accepted + 1, last)
    if not accepted or any(number not in steps for number in rounds):
        return None
    found: Packets = {}
    for number in rounds:
        found |= steps[number]
    return found if len(found) <= MAX_STEPS else None


def read_steps(public: Public | None, schema: Schema) -> dict[int, Packets]:
    """The differences at hand, decoded."""
    steps = public.steps.items() if public is not None else ()
    return {number: decode(body, schema, Kind.BROADCAST).packets for number, body in steps}


def keep_steps(
    public: Public | None, number: int, body: bytes, whole_bytes: int
) -> Mapping[int, bytes]:
    """The differences worth keeping, with the newest: as many of the last as are shorter than the whole model."""
    if public is None:  # the first model has no difference that leads to it
        return {}
    kept, length = {number: body}, len(body)
    for earlier in sorted(public.steps, reverse=True):
        length += len(public.steps[earlier])
        if length >= whole_bytes or len(kept) >= MAX_STEPS:
            break
        kept[earlier] = public.steps[earlier]
    return kept


def named_by_round(packets: Packets, number: int) -> Packets:
    """A difference's vectors are named after its round: `17 params`."""
    return {f"{number} {vector}": tensors for vector, tensors in packets.items()}


def split_by_round(packets: Packets) -> dict[int, Packets]:
    """The opposite of `named_by_round`, for any number of rounds."""
    found: dict[int, Packets] = {}
    for name, tensors in packets.items():
        number, _, vector = name.partition(" ")
        if not (number.isascii() and number.isdigit() and str(int(number)) == number and vector):
            raise MessageError(f"vector {name!r} is not named after a round")
        found.setdefault(int(number), {})[vector] = tensors
    return found
