"""Whole numbers and truth values, exactly as they are: what a float code must not touch."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs import Packet, Rates, Stateless
from fedwsq.codecs.base import rows_of
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate

# Each name means the same to torch and to numpy.
INTEGERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")


@dataclass(frozen=True)
class Integers(Stateless):
    """Every value of one of the types of `INTEGERS` in as many bytes as it has, little-endian.

    No config names it: it stands in `pack` beside the codec that the user chose, and takes and
    gives back tensors of its own type.
    """

    dtype: str
    wire_id: ClassVar[int] = 14
    rates: ClassVar[Rates] = Rates.of(8, 16, 32, 64)

    @property
    def rate(self) -> Rate:
        """The bits of a value."""
        return 8.0 * np.dtype(self.dtype).itemsize

    @property
    def unbiased(self) -> bool:
        return True

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        values = x.detach().cpu().numpy()
        code = values.astype(self._on_the_wire, copy=False).tobytes()
        return Packet(code, (), rate, x.numel(), rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Any bytes are integers, but a truth value is 0 or 1."""
        if packet.side or packet.own_scale:
            raise MessageError(f"{self.dtype} values have no scale")
        size = self.max_bytes(packet.numel, packet.rate)
        if len(packet.code) != size:
            raise MessageError(
                f"{packet.numel} {self.dtype} values take {size} bytes, not {len(packet.code)}"
            )
        if self.dtype == "bool" and max(packet.code, default=0) > 1:
            raise MessageError("a bool is 0 or 1; the code holds other bytes")

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        values = np.frombuffer(packet.code, self._on_the_wire)
        # In memory of their own: a tensor over the packet's bytes could not be written to.
        return torch.from_numpy(values.astype(self.dtype))

    def max_bytes(self, numel: int, rate: Rate) -> int:
        return numel * int(rate) // 8

    @property
    def _on_the_wire(self) -> "np.dtype[np.generic]":
        return np.dtype(self.dtype).newbyteorder("<")
