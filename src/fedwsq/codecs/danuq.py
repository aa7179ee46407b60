"""DANUQ: a fixed non-uniform code around a scale that all clients share (FedWSQ, Algorithm 1)."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Packet
from fedwsq.codecs.levels import edges, levels, widths
from fedwsq.codecs.packing import check_packed, pack, packed_bytes, unpack
from fedwsq.core.errors import ConfigError, MessageError, UpdateError
from fedwsq.core.types import Rate

SMALLEST_SCALE = 1e-12
LARGEST_FLOAT = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Danuq:
    """Distribution-aware non-uniform quantization: the nearest of 2^bits levels, after division by the shared scale.

    Each packet's side value is the client's own std, from which `fold` moves the shared scale: by `momentum`, beta in
    the paper. `dequantize = "shared"` decodes with the scale that encoded, as the published code does; "own" decodes
    with the client's std, the letter of Algorithm 1, so that a constant update decodes to zeros.
    """

    levels: Literal["paper", "optimal", "lloyd-max"] = "paper"
    momentum: float = 0.1
    scale_init: float = 1e-3
    dequantize: Literal["shared", "own"] = "shared"
    wire_id: ClassVar[int] = 1

    def __post_init__(self) -> None:
        widths(self.levels)
        if not 0 < self.momentum <= 1:
            raise ConfigError(f"danuq momentum = {self.momentum} is out of range; it must be above 0 and at most 1")
        if not SMALLEST_SCALE <= self.scale_init <= MAX_MAGNITUDE:
            raise ConfigError(
                f"danuq scale_init = {self.scale_init} is out of range; it must be from "
                f"{SMALLEST_SCALE:g} to {MAX_MAGNITUDE:g}"
            )
        if self.dequantize not in ("shared", "own"):
            raise ConfigError(f'danuq dequantize = "{self.dequantize}" is unknown; it is "shared" or "own"')

    @property
    def rates(self) -> frozenset[int]:
        """The bit widths that this kind of levels has."""
        return widths(self.levels)

    @property
    def unbiased(self) -> bool:
        """No: nearest rounding, and levels whose mean over N(0, 1) need not be zero."""
        return False

    def init(self, numel: int) -> Tensor:
        """The scale of round 1."""
        return torch.tensor([self.scale_init], dtype=torch.float32)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """The code of the nearest level to each `x / shared`, and the std of `x` beside it."""
        bits = self._bits(rate)
        values = x.numpy(force=True)
        if not np.isfinite(values).all():
            raise UpdateError("danuq cannot code an update that is not finite; lower the learning rate or clip")
        if not values.any():
            # A zero update decodes to zeros at every width, though one bit has no zero level.
            return Packet(bytes(packed_bytes(x.numel(), bits)), (0.0,), rate, x.numel(), own_scale=True)
        # In float32 on both sides, so that every implementation finds the same cell. A value on an edge goes to the
        # cell below it (the published code; the paper's half-open cells say above).
        codes = torch.bucketize(x / shared, _tables(bits, self.levels)[1], out_int32=True).to(torch.uint8)
        return Packet(pack(codes, bits), (spread(values),), rate, x.numel(), own_scale=self.dequantize == "own")

    def check(self, packet: Packet) -> None:
        """Every code is a level, so only lengths and padding can be wrong."""
        if len(packet.side) != 1:
            raise MessageError(f"a danuq packet has 1 side value, its scale, not {len(packet.side)}")
        if packet.own_scale != (self.dequantize == "own") and packet.side[0] != 0:
            raise MessageError(f'a danuq packet with dequantize = "{self.dequantize}" must not say otherwise')
        check_packed(packet.code, self._bits(packet.rate), packet.numel)

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The level of each code, times the scale."""
        return self._look_up(packet, shared, 1.0)

    def accumulate(self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float) -> None:
        """`out += weight * decode(packet)`, bit for bit: the weight goes into the table of levels."""
        out += self._look_up(packet, shared, weight)

    def fold(self, shared: Tensor, sides: Sequence[tuple[float, ...]]) -> Tensor:
        """The moving average of the clients' mean std; clients without spread are left out."""
        scales = [scale for (scale,) in sides if scale > 0]
        if not scales:
            return shared
        mean = math.fsum(scales) / len(scales)
        moved = (1 - self.momentum) * float(shared[0]) + self.momentum * mean
        return torch.tensor([max(moved, SMALLEST_SCALE)], dtype=torch.float32)

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Exactly the packed codes."""
        return packed_bytes(numel, self._bits(rate))

    def _bits(self, rate: Rate) -> int:
        if rate not in self.rates:
            offer = ", ".join(map(str, sorted(self.rates)))
            raise ConfigError(f"danuq has no {rate:g}-bit rate; it offers {offer}")
        return int(rate)

    def _look_up(self, packet: Packet, shared: Tensor, weight: float) -> Tensor:
        bits = self._bits(packet.rate)
        scale = packet.side[0] if packet.own_scale else float(shared[0])
        table = _tables(bits, self.levels)[0] * scale * weight
        # numpy's take, which reads uint8 indices as they are.
        return torch.from_numpy(table.numpy().take(unpack(packet.code, bits, packet.numel).numpy()))


def spread(values: NDArray[np.float32]) -> float:
    """The unbiased std, mean removed, or |x| of a single element, as the float32 that travels."""
    # numpy, since the last bits of a torch reduction depend on the number of threads.
    std = abs(float(values[0])) if len(values) == 1 else float(np.std(values, dtype=np.float64, ddof=1))
    return float(np.float32(min(std, LARGEST_FLOAT)))


@functools.cache
def _tables(bits: int, kind: str) -> tuple[Tensor, Tensor]:
    """Levels and edges in float32; the edges are rounded once, from exact midpoints."""
    exact = levels(bits, kind)
    return torch.tensor(exact, dtype=torch.float32), torch.tensor(edges(exact), dtype=torch.float32)
