"""Top-k: the entries of largest magnitude, where they are and what they are; others are zero."""

import bisect
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import (
    MAX_MAGNITUDE,
    Packet,
    Side,
    Stateless,
    finite_values,
    largest_magnitude,
    rows_of,
)
from fedwsq.codecs.elias_fano import Indices, index_bytes, pack_indices, unpack_indices
from fedwsq.codecs.kernels import Floats
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Topk(Stateless):
    """As many of the largest entries as the rate's bits a parameter pay for, but at least one.

    The code is the values in the order of their indices, then the indices by Elias-Fano. `values =
    "float16"` sends them relative to max|x|, the side value; "float32" as they are. Biased: made
    for a link with error feedback.
    """

    values: Literal["float16", "float32"] = "float16"
    wire_id = 7
    rates = Rates.between(0.05, 32.0)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        self.rates.require(rate, "topk")
        values = finite_values(x, "topk")
        numel = len(values)
        indices = largest_entries(values, self.count(numel, rate))
        chosen = values[indices]
        side: Side = ()
        if self.values == "float16":
            # Relative to the largest: as they are, small updates would be lost in float16.
            top = largest_magnitude(values)
            chosen /= np.float32(top or 1.0)
            side = (top,)
        code = chosen.astype(self._dtype).tobytes() + pack_indices(indices, numel)
        return Packet(code, side, rate, numel, own_scale=bool(side), rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Refuse what `encode` makes of no update at this rate."""
        sides = self.side_values(packet.numel)
        if len(packet.side) != sides or packet.own_scale != bool(sides):
            raise MessageError(
                f"a topk packet of {self.values} values has {sides} side value(s), flagged so"
            )
        size = self.max_bytes(packet.numel, packet.rate)
        if len(packet.code) != size:
            raise MessageError(
                f"{packet.numel} elements at {packet.rate:g} bits take {size} bytes by topk, "
                f"not {len(packet.code)}"
            )
        values, _ = self._read(packet)
        top = float(np.abs(values).max(initial=0.0))
        limit = packet.side[0] if sides else MAX_MAGNITUDE
        if not top <= limit:  # NaN fails too
            raise MessageError(
                f"a topk packet carries {top:g}; "
                f"values must be finite and at most {limit:g} in size"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        values, indices = self._read(packet)
        found = np.zeros(packet.numel, np.float32)
        found[indices] = values
        return torch.from_numpy(found)

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        """`out += weight * decode(packet)`, at the entries alone."""
        values, indices = self._read(packet)
        added = torch.from_numpy(values * np.float32(weight)).to(out.device)
        out[torch.from_numpy(indices).to(out.device)] += added

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Exactly the entries that the rate pays for."""
        return self._bytes(self.count(numel, rate), numel)

    def side_values(self, numel: int, rows: int = 1) -> int:
        """The largest magnitude, unless values travel as they are."""
        return 1 if self.values == "float16" else 0

    def count(self, numel: int, rate: Rate) -> int:
        """How many entries are sent: a pure function of size and rate, known to both ends."""
        # In float32, as the rate travels.
        budget = float(np.float32(rate)) * numel / 8
        counts = range(numel + 1)
        # The first that takes too much is one past the answer: more entries never take less.
        too_many = bisect.bisect_right(counts, budget, key=lambda k: self._bytes(k, numel))
        return max(too_many - 1, min(numel, 1))

    @property
    def _dtype(self) -> "np.dtype[np.floating]":
        return np.dtype("<f2" if self.values == "float16" else "<f4")

    def _bytes(self, count: int, numel: int) -> int:
        return count * self._dtype.itemsize + index_bytes(count, numel)

    def _read(self, packet: Packet) -> tuple[Floats, Indices]:
        count = self.count(packet.numel, packet.rate)
        split = count * self._dtype.itemsize
        values = np.frombuffer(packet.code[:split], self._dtype).astype(np.float32)
        if packet.side:
            with np.errstate(invalid="ignore"):  # inf times 0 is for `check` to find
                values *= np.float32(packet.side[0])
        return values, unpack_indices(packet.code[split:], count, packet.numel)


def largest_entries(values: Floats, count: int) -> Indices:
    """The indices of the `count` largest magnitudes, ascending; of equal ones, the first."""
    if count == 0:
        return np.zeros(0, np.int64)
    magnitudes = np.abs(values)
    last = len(values) - count
    edge = np.partition(magnitudes, last)[last]
    chosen = magnitudes > edge
    # All above the edge are in; those on it fill what is left, from the first on.
    left = count - int(chosen.sum())
    on_edge = np.flatnonzero(magnitudes == edge)
    chosen[on_edge[:left]] = True
    return np.flatnonzero(chosen)
