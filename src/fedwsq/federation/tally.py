"""Updates as integers that add up, and what their sums stand for.

A round that counts has two ballots. In the first, clients agree on scales: the mean of log2 of each
tensor's spread, over those whose tensor moved. In the second, coded tensors travel as codes around
these scales, the rest in fixed point, and of all numbers only sums are ever decoded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs import Fixed
from fedwsq.codecs.base import Packet, finite_values, flat_values
from fedwsq.codecs.packing import unpack
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Params, Rate
from fedwsq.secure.ring import Layout, Part, Words
from fedwsq.wire import Line, Uplink
from fedwsq.wire.line import energy_of

LOG_RANGE = 64.0  # spreads from 2^-64 to 2^64 are told apart, others count as the nearest of these
LOG_STEPS = 2.0**16  # steps of a logarithm
REST_TOP = 2**15 - 1  # the largest fixed-point value of either sign
REST_REACH = 16.0  # how many times its spread a tensor of the rest reaches before it is cut off
FIGURE_STEPS = 2.0**16  # steps of a loss or an error
FIGURE_TOP = 128.0  # what is above counts as this

Scales = Mapping[str, float]  # tensor -> the scale that all code it with; 0: it did not move


class Cast(NamedTuple):
    """What a client casts of its update, and what the server makes of its share."""

    words: list[Words]
    decoded: Params


class Counted(NamedTuple):
    """What a sum of votes stands for."""

    total: Params  # the sum of all updates
    loss: float  # means over those who voted
    error: float
    unanimous: float  # share of the coded elements on which all agree


@dataclass(frozen=True)
class Tally:
    """The integers of a round with so many clients, over one line."""

    line: Line
    voters: int

    @property
    def link(self) -> Uplink:
        link = self.line.link
        assert isinstance(link, Uplink)  # a plan has no other
        return link

    @property
    def bits(self) -> Rate:
        assert isinstance(self.link.bits, Fixed)  # the link saw to it
        return self.link.bits.bits

    @property
    def top(self) -> int:
        """The highest code."""
        return int(2**self.bits) - 1

    # The first ballot.

    @cached_property
    def spread_layout(self) -> Layout:
        """A logarithm for each tensor, and whether it moved."""
        tensors = len(self.line.schema.names)
        return [Part(tensors, 32), Part(tensors, self.voters.bit_length())]

    def spreads(self, update: Params) -> list[Words]:
        """How far each tensor of an update spreads; one that is not finite has no part in a sum."""
        logs = np.zeros(len(self.line.schema.names), np.uint32)
        moved = np.zeros(len(logs), np.uint32)
        for at, name in enumerate(self.line.schema.names):
            finite_values(update[name], "a sum of counts")
            spread = self._spread(name, update[name])
            if spread > 0:
                log = min(max(math.log2(spread), -LOG_RANGE), LOG_RANGE)
                logs[at] = round((log + LOG_RANGE) * LOG_STEPS)
                moved[at] = 1
        parts = self.spread_layout
        return [logs.astype(parts[0].dtype), moved.astype(parts[1].dtype)]

    def agreed(self, sums: Sequence[Words], voters: int) -> dict[str, float]:
        """The geometric mean of the spreads of those whose tensor moved; 0 where none did."""
        found: dict[str, float] = {}
        # As integers of Python's own: a product that is too long for a word of numpy's wraps.
        logs, moves = (each.tolist() for each in sums)
        for name, log, moved in zip(self.line.schema.names, logs, moves, strict=True):
            if moved > voters or log > moved * 2 * LOG_RANGE * LOG_STEPS:
                raise MessageError(f"the spread of {name} is beyond what these clients can cast")
            mean = 0.0
            if moved:
                mean = 2.0 ** (log / moved / LOG_STEPS - LOG_RANGE)
            found[name] = mean
        return found

    def _spread(self, name: str, x: Tensor) -> float:
        if name in self.line.coded and x.numel() > 1:
            return float(np.std(flat_values(x), dtype=np.float64))
        return math.sqrt(energy_of(x) / max(1, x.numel()))

    # The second ballot.

    @cached_property
    def vote_layout(self) -> Layout:
        """Every tensor in the schema's order, then loss and error."""
        code_bits = (self.voters * self.top).bit_length()
        rest_bits = (self.voters * 2 * REST_TOP).bit_length()
        parts = []
        for name, size in self.line.schema.sizes.items():
            parts.append(Part(size, code_bits if name in self.line.coded else rest_bits))
        return [*parts, Part(2, 32)]

    @cached_property
    def vote_wire(self) -> Layout:
        """The same as they travel: a masked integer is as wide as the sum, a plain one is not."""
        if self.link.secure:
            return self.vote_layout
        return Tally(self.line, 1).vote_layout

    def votes(self, update: Params, scales: Scales, loss: float) -> Cast:
        """An update around the agreed scales."""
        words: list[Words] = []
        decoded: Params = {}
        lost = 0.0
        energy = 0.0
        for part, name in zip(self.vote_layout, self.line.schema.names, strict=False):
            x = update[name]
            codes = self._codes(name, x, scales[name])
            words.append(codes.astype(part.dtype))
            decoded[name] = self._values(name, codes, scales[name], 1, x.shape)
            lost += energy_of(x - decoded[name].to(x.device))
            energy += energy_of(x)
        error = lost / energy if energy else 0.0
        words.append(_figures(loss, error, self.vote_layout[-1]))
        return Cast(words, decoded)

    def counted(self, sums: Sequence[Words], scales: Scales, voters: int) -> Counted:
        """What the sum over `voters` clients stands for; one that is no such sum is refused."""
        *tensors, figures = sums
        total: Params = {}
        unanimous = 0
        elements = 0
        for name, counts in zip(self.line.schema.names, tensors, strict=True):
            coded = name in self.line.coded
            most = voters * self._most(name)
            if counts.size and int(counts.max()) > most:
                raise MessageError(
                    f"a count of {int(counts.max())} in {name}, where {voters} clients can cast at "
                    f"most {most}; somebody's ballot was none"
                )
            shape = self.line.schema.shapes[name]
            total[name] = self._values(name, counts, scales[name], voters, shape)
            if coded:
                unanimous += int(np.count_nonzero((counts == 0) | (counts == most)))
                elements += counts.size
        each = figures.astype(np.float64) / FIGURE_STEPS / voters
        if each.max() > FIGURE_TOP:
            raise MessageError(
                f"a loss or an error of {each.max():g} on average, at most {FIGURE_TOP:g} can be "
                "cast; somebody's ballot was none"
            )
        return Counted(total, float(each[0]), float(each[1]), unanimous / max(1, elements))

    def _most(self, name: str) -> int:
        """The largest integer that a client casts of a tensor."""
        return self.top if name in self.line.coded else 2 * REST_TOP

    # A ballot by itself, which only a server without masks can see: a sum would be nobody's fault.

    def require_spreads(self, words: Sequence[Words]) -> None:
        """Refuse what no client casts in the first ballot."""
        self.agreed(words, voters=1)

    def require_votes(self, words: Sequence[Words]) -> None:
        """Refuse what no client casts in the second."""
        most = [self._most(name) for name in self.line.schema.names]
        most.append(int(FIGURE_TOP * FIGURE_STEPS))
        for found, limit in zip(words, most, strict=True):
            if found.size and int(found.max()) > limit:
                raise MessageError(
                    f"an integer of {int(found.max())}, a ballot has at most {limit}"
                )

    def _codes(self, name: str, x: Tensor, scale: float) -> NDArray[np.int64]:
        values = flat_values(x)
        if name not in self.line.coded:
            reach = REST_REACH * scale
            if not reach:
                return np.full(len(values), REST_TOP)
            fixed = np.clip(values.astype(np.float64) / reach, -1, 1) * REST_TOP
            return np.rint(fixed).astype(np.int64) + REST_TOP
        if not values.any():
            # There is no code for zero: by turns the one below it and the one above.
            return self.top // 2 + np.arange(len(values)) % 2
        if not scale:
            return np.zeros(len(values), np.int64)  # whatever is cast stands for 0
        shared = torch.tensor([scale], dtype=torch.float32)
        packet: Packet = self.link.codec.encode(x, shared, self.bits, seed=0)
        return unpack(packet.code, int(self.bits), len(values)).astype(np.int64)

    def _values(
        self,
        name: str,
        counts: NDArray[np.integer],
        scale: float,
        voters: int,
        shape: Sequence[int],
    ) -> Tensor:
        """What counts of so many voters stand for, each rounded once."""
        sums = counts.astype(np.float64)
        if name in self.line.coded:
            steps = self.link.steps
            values = scale * (voters * steps.lowest + steps.step * sums)
        else:
            values = (sums - voters * REST_TOP) * (REST_REACH * scale / REST_TOP)
        return torch.from_numpy(values.astype(np.float32)).reshape(tuple(shape))


def _figures(loss: float, error: float, part: Part) -> Words:
    """Loss and error in fixed point; what is not a number counts as the largest."""
    found = []
    for value in (loss, error):
        bounded = min(max(value, 0.0), FIGURE_TOP) if math.isfinite(value) else FIGURE_TOP
        found.append(round(bounded * FIGURE_STEPS))
    return np.array(found, part.dtype)
