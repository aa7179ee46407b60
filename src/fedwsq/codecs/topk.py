"""Top-k: the entries of largest magnitude, where they are and what they are; the others count as zero."""

import bisect
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Alone, Packet, finite_values, rows_of
from fedwsq.codecs.elias_fano import Indices, index_bytes, pack_indices, unpack_indices
from fedwsq.codecs.groups import Floats, largest
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Topk(Alone):
    """As many of the largest entries as the rate's bits a parameter pay for, but at least one of any tensor.

    The code is the values in the order of their indices, then the indices by Elias-Fano. `values = "float16"` sends
    them relative to max|x|, the side value; "float32" as they are. Biased: made for a link with error feedback.
    """

    values: Literal["float16", "float32"] = "float16"
    wire_id: ClassVar[int] = 7

    def __post_init__(self) -> None:
        if self.values not in ("float16", "float32"):
            raise ConfigError(
                f'topk values = "{self.values}" is unknown; it is "float16" or "float32"'
            )

    @property
    def rates(self) -> tuple[float, float]:
        """Any budget from a twentieth of a bit to 32 bits a parameter."""
        return 0.05, 32.0

    @property
    def unbiased(self) -> bool:
        """No: small entries are never sent."""
        return False

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """Indices and values of the largest entries; of equal ones, the first."""
        if not self.rates[0] <= rate <= self.rates[1]:
            raise ConfigError(
                f"topk has no {rate:g}-bit rate; it offers {self.rates[0]:g} to {self.rates[1]:g}"
            )
        values = finite_values(x, "topk")
        indices = largest_entries(values, self.count(len(values), rate))
        side = (float(largest(values[None])[0]),) if self.values == "float16" else ()
        chosen = values[indices] / np.float32(side[0] or 1.0) if side else values[indices]
        code = chosen.astype(self._dtype).tobytes() + pack_indices(indices, len(values))
        return Packet(code, side, rate, len(values), own_scale=bool(side), rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Raise `MessageError` unless the code is what `encode` makes of some update at this rate."""
        sides = self.side_values(packet.numel)
        if len(packet.side) != sides or packet.own_scale != bool(sides):
            raise MessageError(
                f"a topk packet of {self.values} values has {sides} side value(s), flagged so"
            )
        if len(packet.code) != (size := self.max_bytes(packet.numel, packet.rate)):
            raise MessageError(
                f"{packet.numel} elements at {packet.rate:g} bits take {size} bytes by topk, not {len(packet.code)}"
            )
        top = float(np.abs(self._read(packet)[0]).max(initial=0.0))
        limit = packet.side[0] if sides else MAX_MAGNITUDE
        if not top <= limit:  # NaN fails too
            raise MessageError(
                f"a topk packet carries {top:g}; values must be finite and at most {limit:g} in size"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The entries in their places, zeros elsewhere."""
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
        return max(
            bisect.bisect_right(range(numel + 1), budget, key=lambda k: self._bytes(k, numel)) - 1,
            min(numel, 1),
        )

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
    magnitudes = np.abs(values)
    if count == 0:
        return np.zeros(0, np.int64)
    edge = np.partition(magnitudes, len(values) - count)[len(values) - count]
    chosen = magnitudes > edge
    chosen[np.flatnonzero(magnitudes == edge)[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)
