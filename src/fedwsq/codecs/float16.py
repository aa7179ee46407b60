"""Half the bytes of float32: for what should travel almost exactly.

Such as the tensors that a link does not select.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import (
    MAX_MAGNITUDE,
    Packet,
    Stateless,
    finite_values,
    largest_magnitude,
    rows_of,
)
from fedwsq.codecs.packing import require_length
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate

# The largest magnitude of 11 bits that `check` takes: what is above it would be rounded to more.
LARGEST = 1387 * 2.0**56


@dataclass(frozen=True)
class Float16(Stateless):
    """Little-endian float16 of each value over a scale, rounded to the nearest.

    The scale, a side value, is a power of two that brings the largest magnitude near the top of
    float16's range: 11 significant bits for all within 2^28 of the largest. Without it, updates
    below 6e-5 would lose theirs.
    """

    wire_id = 11
    rates = Rates.of(16)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        self.rates.require(rate, "float16")
        values = finite_values(x, "float16")
        top = largest_magnitude(values)
        if top > LARGEST:
            values = values.clip(-LARGEST, LARGEST)
        scale = power_of_two(top)
        code = (values / np.float32(scale or 1.0)).astype("<f2").tobytes()
        return Packet(code, (scale,), rate, len(values), own_scale=True, rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Refuse all but `numel` values that are finite, and of sane size with their scale."""
        if len(packet.side) != 1:
            raise MessageError(
                f"a float16 packet has 1 side value, its scale, not {len(packet.side)}"
            )
        if not packet.own_scale:
            raise MessageError(
                "a float16 packet is decoded with its own scale; its flag is missing"
            )

        size = self.max_bytes(packet.numel, packet.rate)
        require_length(packet.code, size, f"{packet.numel} float16 values")

        (scale,) = packet.side
        top = float(np.abs(np.frombuffer(packet.code, "<f2")).max(initial=0.0))
        if not top * scale <= MAX_MAGNITUDE:  # NaN fails too, and infinity times 0
            raise MessageError(
                f"a float16 packet carries {top} times {scale:g}; "
                f"values must be finite and at most {MAX_MAGNITUDE:g}"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        values = np.frombuffer(packet.code, "<f2").astype(np.float32)
        return torch.from_numpy(values * np.float32(packet.side[0]))

    def max_bytes(self, numel: int, rate: Rate) -> int:
        return 2 * numel

    def side_values(self, numel: int, rows: int = 1) -> int:
        return 1


def power_of_two(top: float) -> float:
    """The scale that puts `top` into [2^14, 2^15), 0 for 0.

    Above that range where float32 has no smaller normal number.
    """
    if not top:
        return 0.0
    _, exponent = math.frexp(top)
    return 2.0 ** max(exponent - 15, -126)
