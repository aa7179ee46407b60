"""EDEN: a random rotation makes any update normal, and the levels that are best for normal data code it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import Alone, Packet, finite_values, rows_of
from fedwsq.codecs.grid import look_up, quantize, tables
from fedwsq.codecs.groups import LARGEST_SCALE, Floats, Groups, Measured
from fedwsq.codecs.hadamard import blocks, padded, rotate, slice_count, unrotate
from fedwsq.codecs.levels import SOLVED_WIDTHS, levels
from fedwsq.codecs.packing import check_packed, packed_bytes
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate


@dataclass(frozen=True)
class Eden(Alone):
    """EDEN (Vargaftik et al., ICML 2022, arXiv:2108.08842): rotate, divide by the rms, take the nearest level.

    With R the rotation and Q the Lloyd-Max levels, each slice x of up to 4096 elements sends one scale S:
    "unbiased" |x|^2 / <Rx, Q>, whose decoded mean over seeds is x; "least-squares" <Rx, Q> / |Q|^2, the closest that
    a multiple of Q comes to Rx. With D the squared error of the levels on N(0, 1), they lose 1 / (1 - D) - 1 and D of
    the squared norm, whatever the update looks like.
    """

    scale: Literal["unbiased", "least-squares"] = "unbiased"
    wire_id: ClassVar[int] = 8

    def __post_init__(self) -> None:
        if self.scale not in ("unbiased", "least-squares"):
            raise ConfigError(
                f'eden scale = "{self.scale}" is unknown; it is "unbiased" or "least-squares"'
            )

    @property
    def rates(self) -> frozenset[int]:
        """1 to 8 bits."""
        return frozenset(SOLVED_WIDTHS)

    @property
    def unbiased(self) -> bool:
        """With the scale of that name."""
        return self.scale == "unbiased"

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """The level nearest to each rotated element, and a scale for each slice."""
        bits, values = self._bits(rate), finite_values(x, "eden")
        rotated, scales = rotate(values, seed), np.empty(slice_count(len(values)))
        parts = []
        for block in blocks(len(values)):
            code, scales[block.slices] = self._quantize(block.rows(rotated), bits)
            parts.append(code)
        side = np.minimum(scales, LARGEST_SCALE).astype(np.float32)
        return Packet(
            b"".join(parts),
            tuple(side.tolist()),
            rate,
            len(values),
            own_scale=True,
            rows=rows_of(x.shape),
        )

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
        check_packed(packet.code, self._bits(packet.rate), padded(packet.numel))

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The level of each code, times its slice's scale, rotated back."""
        rotated = unscaled(packet.code, self._bits(packet.rate), padded(packet.numel))
        scales = np.array(packet.side, np.float32)
        for block in blocks(packet.numel):
            rows = block.rows(rotated)
            rows *= scales[block.slices, None]
        return torch.from_numpy(unrotate(rotated, packet.numel, seed))

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Exactly the packed codes, those of the padding too."""
        return packed_bytes(padded(numel), self._bits(rate))

    def side_values(self, numel: int, rows: int = 1) -> int:
        """One scale for each slice."""
        return slice_count(numel)

    def _quantize(self, rows: Floats, bits: int) -> tuple[bytes, Measured]:
        """The codes of rotated slices, one in each row, and their scales; 0 for a slice of zeros."""
        energy = np.square(rows, dtype=np.float64).sum(1)
        rms = np.sqrt(energy / rows.shape[1]).astype(np.float32)
        between = tables(levels(bits, "lloyd-max"))[1]
        # A slice fills whole bytes at every width.
        code = quantize(
            rows.reshape(-1),
            Groups(*rows.shape),
            np.where(rms > 0, rms, np.float32(1)),
            between,
            bits,
        )
        chosen = unscaled(code, bits, rows.size).reshape(rows.shape)
        # Never negative: a level has the sign of the element it stands for.
        product = (rows * chosen).sum(1, dtype=np.float64)
        if self.scale == "unbiased":
            return code, np.divide(energy, product, out=np.zeros_like(energy), where=product > 0)
        return code, product / np.square(chosen).sum(1, dtype=np.float64)

    def _bits(self, rate: Rate) -> int:
        if rate not in self.rates:
            raise ConfigError(f"eden has no {rate:g}-bit rate; it offers 1 to 8")
        return int(rate)


def unscaled(code: bytes, bits: int, count: int) -> Floats:
    """The level of each code."""
    packet = Packet(code, (1.0,), bits, count)
    return look_up(
        packet, bits, tables(levels(bits, "lloyd-max"))[0], packet.side, Groups(1, count)
    ).numpy()
