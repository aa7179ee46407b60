"""The identity: every value in four bytes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Alone, Packet, finite_values, rows_of
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Float32(Alone):
    """Little-endian float32, as it is; nothing shared, nothing lost."""

    wire_id: ClassVar[int] = 0

    @property
    def rates(self) -> frozenset[int]:
        """32 bits, nothing else."""
        return frozenset({32})

    @property
    def unbiased(self) -> bool:
        """Yes: the decoded value is the input."""
        return True

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """The bytes of `x`."""
        if rate not in self.rates:
            raise ConfigError(f"float32 has no {rate:g}-bit rate; it offers 32")
        values = finite_values(x, "float32")
        return Packet(
            values.astype("<f4", copy=False).tobytes(), (), rate, x.numel(), rows=rows_of(x.shape)
        )

    def check(self, packet: Packet) -> None:
        """Raise `MessageError` unless the code is `numel` finite values of sane size and nothing else."""
        if packet.side:
            raise MessageError(f"a float32 packet has no side values, not {len(packet.side)}")
        if len(packet.code) != 4 * packet.numel:
            raise MessageError(
                f"{packet.numel} float32 values take {4 * packet.numel} bytes, not {len(packet.code)}"
            )
        largest = np.abs(np.frombuffer(packet.code, "<f4")).max(initial=0.0)
        if not largest <= MAX_MAGNITUDE:  # NaN fails too
            raise MessageError(
                f"a float32 packet carries {largest}; values must be finite and at most {MAX_MAGNITUDE:g}"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The values, in memory of their own."""
        return torch.from_numpy(np.frombuffer(packet.code, "<f4").astype(np.float32))

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Four bytes a value."""
        return 4 * numel

    def side_values(self, numel: int, rows: int = 1) -> int:
        """None."""
        return 0
