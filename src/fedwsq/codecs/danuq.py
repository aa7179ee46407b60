"""DANUQ: a fixed non-uniform code around a scale that all clients share (FedWSQ, Algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import (
    MAX_MAGNITUDE,
    Packet,
    Side,
    Steps,
    flat_values,
    require_finite,
    require_known,
    resident_values,
    rows_of,
)
from fedwsq.codecs.coding import Table, quantize, survey, tables
from fedwsq.codecs.grid import Grid, Levelled
from fedwsq.codecs.groups import ScalePer, as_scales
from fedwsq.codecs.kernels import Coded, Floats, Scales
from fedwsq.codecs.levels import levels, widths
from fedwsq.codecs.packing import check_packed, packed_bytes
from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate

SMALLEST_SCALE = 1e-12


@dataclass(frozen=True)
class Danuq(Levelled):
    """Distribution-aware non-uniform quantization: the nearest of 2^bits levels of x / scale.

    The scale is shared. Each packet's side value is the client's own std, from which `fold` moves
    the shared scale: by `momentum`, beta in the paper. `scale_init = "calibrate"` has every packet
    use its own scale until one was folded, and then starts from their mean; a number is the scale
    of round 1 (1e-3 in the published code), and loses what is far from it: at 4 bits 92 % of an
    update whose std is 0.05. `dequantize = "shared"` decodes with the scale that encoded, as the
    published code does; "own" decodes with the client's std, the letter of Algorithm 1, so that a
    constant update decodes to zeros. With a `band` above 1, a tensor whose std is more than `band`
    times the shared scale, or less than 1 / band of it, is coded with its own scale instead.
    `scale_per` says which elements have a scale of their own. Biased: rounded to the nearest, and
    the mean of the levels over N(0, 1) need not be zero.
    """

    levels: Literal["paper", "optimal", "lloyd-max", "even"] = "paper"
    momentum: float = 0.1
    scale_init: float | Literal["calibrate"] = "calibrate"
    dequantize: Literal["shared", "own"] = "shared"
    band: float = 0.0  # 0: off
    scale_per: ScalePer = "tensor"
    block: int = 64
    wire_id = 1
    draws = False

    def __post_init__(self) -> None:
        widths(self.levels)  # which knows the nearest word
        require_known(self)
        self.require_block()
        if not 0 < self.momentum <= 1:
            raise ConfigError(
                f"danuq momentum = {self.momentum} is out of range; "
                "it must be above 0 and at most 1"
            )
        if not self._sane_start():
            raise ConfigError(
                f"danuq scale_init = {self.scale_init} is out of range; it must be from "
                f'{SMALLEST_SCALE:g} to {MAX_MAGNITUDE:g}, or "calibrate"'
            )
        if self.band != 0 and not 1 < self.band <= MAX_MAGNITUDE:
            raise ConfigError(
                f"danuq band = {self.band} is out of range; it must be above 1, or 0 for none"
            )

    def _sane_start(self) -> bool:
        if isinstance(self.scale_init, str):
            return self.scale_init == "calibrate"
        return SMALLEST_SCALE <= self.scale_init <= MAX_MAGNITUDE

    @property
    def rates(self) -> Rates:
        """Those that have levels of this kind."""
        return widths(self.levels)

    def steps(self, rate: Rate) -> Steps | None:
        """Those of one bit, and of even levels at any width."""
        one_scale = self.scale_per == "tensor" and self.dequantize == "shared" and not self.band
        bits = self._bits(rate)
        if not one_scale or (bits > 1 and self.levels != "even"):
            return None
        found = levels(bits, self.levels)
        return Steps(found[0], found[1] - found[0])

    def init(self, numel: int, rows: int = 1) -> Tensor:
        """The scales of round 1; 0 stands for one that is not known yet."""
        start = 0.0 if self.scale_init == "calibrate" else self.scale_init
        return torch.full((self.side_values(numel, rows),), start)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        bits = self._bits(rate)
        values = resident_values(x)
        rows = rows_of(x.shape)
        groups = self.groups(len(values), rows)
        found = survey(values, groups)
        largest = float(found.largest.max())
        require_finite(largest, "danuq")

        # One of several groups is zeros if and only if its side value is 0, so a constant one has
        # its magnitude there.
        side = as_scales(found.std if groups.count == 1 else found.scale)
        scales = shared.numpy()
        own = self._needs_own(scales, side)
        if own:
            side = np.where(side > 0, side, as_scales(found.largest))
            scales = side

        if largest:
            # In float32 on both sides, so that every implementation finds the same cell. A value
            # on an edge goes to the cell below it (the published code; the paper's half-open cells
            # say above).
            each = np.where(scales > 0, scales, np.float32(1))
            code = quantize(values, Scales(each, groups.size), self._table(bits).edges, bits)
        else:
            # A zero update decodes to zeros at every width, though one bit has no zero level.
            code = bytes(packed_bytes(len(values), bits))
            own = True
        own = own or self.dequantize == "own"
        return Packet(code, tuple(side.tolist()), rate, len(values), own_scale=own, rows=rows)

    def check(self, packet: Packet) -> None:
        """Every code is a level, so only lengths and padding can be wrong."""
        self.check_side(packet)
        if self.dequantize == "own" and not packet.own_scale:
            raise MessageError(
                'a danuq packet with dequantize = "own" is decoded with its own scale; '
                "its flag is missing"
            )
        check_packed(packet.code, self._bits(packet.rate), packet.numel)

    def fold(self, shared: Tensor, sides: Sequence[Side]) -> Tensor:
        """The moving average of the clients' mean std; clients without spread are left out."""
        if not sides:
            return shared
        before = shared.double().numpy()
        each = np.array(sides, np.float64)  # [packets, groups]
        spread = (each > 0).sum(0)
        momentum = np.where(before > 0, self.momentum, 1.0)  # the first scale is taken whole
        moved = (1 - momentum) * before + momentum * each.sum(0) / np.maximum(spread, 1)
        found = np.where(spread > 0, np.maximum(moved, SMALLEST_SCALE), before)
        return torch.from_numpy(found.astype(np.float32))

    def _needs_own(self, shared: Floats, local: Floats) -> bool:
        """Whether the shared scale is missing, not known yet or, with a band, too far off."""
        # One of several groups that is all zeros wants no scale; a whole tensor always does.
        wanted = local > 0 if len(local) > 1 else slice(None)
        if not shared.size or not shared[wanted].all():
            return True
        if not self.band:
            return False
        ratio = local[local > 0] / shared[local > 0]
        return bool(((ratio > self.band) | (ratio < 1 / self.band)).any())

    def _table(self, bits: int) -> Table:
        return tables(levels(bits, self.levels))

    def _coded(self, packet: Packet, shared: Tensor) -> Coded:
        bits = self._bits(packet.rate)
        groups = self.groups(packet.numel, packet.rows)
        side = np.array(packet.side, np.float32)
        each = side if packet.own_scale else flat_values(shared)
        if len(each) != groups.count:
            raise MessageError("a danuq packet leans on a shared scale that this end does not have")
        if groups.count > 1 and not packet.own_scale:
            # A group of zeros stays zero, though one bit has no zero level.
            each = np.where(side != 0, each, np.float32(0))
        scales = Scales(each, groups.size)
        return Coded(packet.code, bits, packet.numel, self._table(bits).levels, scales)


class Solved(Grid):
    """DANUQ's exact levels with a scale of their own: for what a link does not select."""

    def levels(self, bits: int) -> tuple[float, ...]:
        """The optimal levels with the uppermost at 1."""
        found = levels(bits, "optimal")
        return tuple(level / found[-1] for level in found)


@dataclass(frozen=True)
class Danuq8(Solved):
    """256 levels: next to nothing is lost."""

    wire_id = 12
    rates = Rates.of(8)


@dataclass(frozen=True)
class Danuq4(Solved):
    """16 levels: a hundredth is lost, which is little beside what fewer bits lose of the rest."""

    wire_id = 16
    rates = Rates.of(4)
