"""Half the bytes of float32: for what should travel almost exactly, such as the tensors that a link does not select."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Alone, Packet, finite_values, rows_of
from fedwsq.codecs.groups import largest
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Float16(Alone):
    """Little-endian float16 over a power of two that brings the largest magnitude near the top of float16's range.

    11 significant bits for all within 2^28 of the largest; without the scale, updates below 6e-5 would lose theirs.
    """

    wire_id: ClassVar[int] = 11

    @property
    def rates(self) -> frozenset[int]:
        """16 bits, nothing else."""
        return frozenset({16})

    @property
    def unbiased(self) -> bool:
        """No: rounded to the nearest."""
        return False

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """The nearest float16 of each `x / scale`, and the scale beside them."""
        if rate not in self.rates:
            raise ConfigError(f"float16 has no {rate:g}-bit rate; it offers 16")
        values = finite_values(x, "float16")
        scale = power_of_two(float(largest(values[None])[0]))
        code = (values / np.float32(scale or 1.0)).astype("<f2").tobytes()
        return Packet(code, (scale,), rate, len(values), own_scale=True, rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Raise `MessageError` unless the code is `numel` finite values, of sane size with their scale."""
        if len(packet.side) != 1:
            raise MessageError(
                f"a float16 packet has 1 side value, its scale, not {len(packet.side)}"
            )
        if not packet.own_scale:
            raise MessageError(
                "a float16 packet is decoded with its own scale; its flag is missing"
            )
        if len(packet.code) != 2 * packet.numel:
            raise MessageError(
                f"{packet.numel} float16 values take {2 * packet.numel} bytes, not {len(packet.code)}"
            )
        top = float(np.abs(np.frombuffer(packet.code, "<f2")).max(initial=0.0))
        if not top * packet.side[0] <= MAX_MAGNITUDE:  # NaN fails too, and infinity times 0
            raise MessageError(
                f"a float16 packet carries {top} times {packet.side[0]:g}; values must be finite and at most "
                f"{MAX_MAGNITUDE:g}"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """Each value times the scale."""
        return torch.from_numpy(
            np.frombuffer(packet.code, "<f2").astype(np.float32) * np.float32(packet.side[0])
        )

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Two bytes a value."""
        return 2 * numel

    def side_values(self, numel: int, rows: int = 1) -> int:
        """The scale."""
        return 1


def power_of_two(top: float) -> float:
    """The scale that puts `top` into [2^14, 2^15), or above where float32 has no smaller normal number; 0 for 0."""
    return 2.0 ** max(math.frexp(top)[1] - 15, -126) if top else 0.0
