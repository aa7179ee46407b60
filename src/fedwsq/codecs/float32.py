"""The identity: every value in four bytes."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Packet, Stateless, finite_values, rows_of
from fedwsq.codecs.packing import require_length
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Float32(Stateless):
    """Little-endian float32, as it is; nothing shared, nothing lost."""

    wire_id = 0
    draws = False
    rates = Rates.of(32)

    @property
    def unbiased(self) -> bool:
        return True

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        self.rates.require(rate, "float32")
        code = finite_values(x, "float32").astype("<f4", copy=False).tobytes()
        return Packet(code, (), rate, x.numel(), rows=rows_of(x.shape))

    def check(self, packet: Packet) -> None:
        """Refuse all but `numel` finite values of sane size."""
        if packet.side:
            raise MessageError(f"a float32 packet has no side values, not {len(packet.side)}")

        size = self.max_bytes(packet.numel, packet.rate)
        require_length(packet.code, size, f"{packet.numel} float32 values")

        self.check_values(packet.code)

    def check_values(self, code: bytes) -> None:
        """Refuse values that are not finite or beyond reason; of several packets at once, too."""
        largest = np.abs(np.frombuffer(code, "<f4")).max(initial=0.0)
        if not largest <= MAX_MAGNITUDE:  # NaN fails too
            raise MessageError(
                f"a float32 packet carries {largest}; "
                f"values must be finite and at most {MAX_MAGNITUDE:g}"
            )

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        # In memory of their own: a tensor over the packet's bytes could not be written to.
        return torch.from_numpy(np.frombuffer(packet.code, "<f4").astype(np.float32))

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        weighted = np.frombuffer(packet.code, "<f4") * np.float32(weight)
        if out.device.type == "cpu":
            into = out.numpy()
            into += weighted
        else:
            out += torch.from_numpy(weighted).to(out.device)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        return 4 * numel
