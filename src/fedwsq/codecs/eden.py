"""EDEN: a random rotation makes any update normal, and the best levels for normal data code it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import Packet, Stateless, finite_values, rows_of
from fedwsq.codecs.coding import Table, look_up, quantize, tables
from fedwsq.codecs.groups import as_scales
from fedwsq.codecs.hadamard import blocks, padded, rotate, slice_count, unrotate
from fedwsq.codecs.kernels import Coded, Doubles, Floats, Scales
from fedwsq.codecs.levels import SOLVED_WIDTHS, levels
from fedwsq.codecs.packing import check_packed, packed_bytes
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import MessageError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Eden(Stateless):
    """EDEN (Vargaftik et al., ICML 2022, arXiv:2108.08842): rotate, divide by the rms, round.

    With R the rotation and Q the nearest Lloyd-Max levels, each slice x of up to 4096 elements
    sends one scale S: "unbiased" |x|^2 / <Rx, Q>, whose decoded mean over seeds is x (but for tiny
    sparse tensors: the rotation is made of a few signs, and with 64 values of which one is not
    zero the mean is 8 % off at 1 bit);
    "least-squares" <Rx, Q> / |Q|^2, the closest that a multiple of Q comes to Rx. With D the
    squared error of the levels on N(0, 1), they lose 1 / (1 - D) - 1 and D of the squared norm,
    whatever the update looks like.
    """

    scale: Literal["unbiased", "least-squares"] = "unbiased"
    wire_id = 8
    rates = Rates.of(*SOLVED_WIDTHS)

    @property
    def unbiased(self) -> bool:
        return self.scale == "unbiased"

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        bits = self.rates.width(rate, "eden")
        values = finite_values(x, "eden")
        numel = len(values)
        rotated = rotate(values, seed)
        scales = np.empty(slice_count(numel))
        parts = []
        for block in blocks(numel):
            code, scales[block.slices] = self._quantize(block.rows(rotated), bits)
            parts.append(code)
        side = tuple(as_scales(scales).tolist())
        rows = rows_of(x.shape)
        return Packet(b"".join(parts), side, rate, numel, own_scale=True, rows=rows)

    def check(self, packet: Packet) -> None:
        """Every code is a level, so only the scales' number, lengths and padding can be wrong."""
        count = slice_count(packet.numel)
        if packet.rate not in self.rates:
            raise MessageError(f"an eden packet has 1 to 8 bits a code, not {packet.rate:g}")
        if len(packet.side) != count:
            raise MessageError(
                f"an eden packet has {count} side value(s), its scales, not {len(packet.side)}"
            )
        if not packet.own_scale:
            raise MessageError("an eden packet is decoded with its own scales; its flag is missing")
        check_packed(packet.code, int(packet.rate), padded(packet.numel))

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        bits = self.rates.width(packet.rate, "eden")
        # Scaled before it is rotated back: a slice has one scale, an element of the update none.
        rotated = unscaled(packet.code, bits, padded(packet.numel))
        scales = np.array(packet.side, np.float32)
        for block in blocks(packet.numel):
            rows = block.rows(rotated)
            rows *= scales[block.slices, None]
        return torch.from_numpy(unrotate(rotated, packet.numel, seed))

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Exactly the packed codes, those of the padding too."""
        return packed_bytes(padded(numel), self.rates.width(rate, "eden"))

    def side_values(self, numel: int, rows: int = 1) -> int:
        """One scale for each slice."""
        return slice_count(numel)

    def _quantize(self, rows: Floats, bits: int) -> tuple[bytes, Doubles]:
        """The codes of rotated slices, one in each row, and their scales; 0 for zeros."""
        size = rows.shape[1]
        energy = np.square(rows, dtype=np.float64).sum(1)
        rms = np.sqrt(energy / size).astype(np.float32)
        divisors = Scales(np.where(rms > 0, rms, np.float32(1)), size)
        # A slice fills whole bytes at every width, so codes of blocks can be put end to end.
        code = quantize(rows.reshape(-1), divisors, table(bits).edges, bits)

        chosen = unscaled(code, bits, rows.size).reshape(rows.shape)
        # Never negative: a level has the sign of the element it stands for.
        product = (rows * chosen).sum(1, dtype=np.float64)
        if self.scale == "unbiased":
            zeros = np.zeros_like(energy)
            return code, np.divide(energy, product, out=zeros, where=product > 0)
        return code, product / np.square(chosen).sum(1, dtype=np.float64)


def unscaled(code: bytes, bits: int, count: int) -> Floats:
    """The level of each code."""
    one = Scales(np.ones(1, np.float32), count)
    return look_up(Coded(code, bits, count, table(bits).levels, one)).numpy()


def table(bits: int) -> Table:
    return tables(levels(bits, "lloyd-max"))
