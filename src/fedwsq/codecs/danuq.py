"""DANUQ: a fixed non-uniform code around a scale that all clients share (FedWSQ, Algorithm 1)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs.base import MAX_MAGNITUDE, Packet, require_finite, resident_values, rows_of
from fedwsq.codecs.grid import Grid, look_up, quantize, survey, tables
from fedwsq.codecs.groups import Floats, Scales, as_scales, check_scales, check_sides, make_groups
from fedwsq.codecs.levels import levels, widths
from fedwsq.codecs.packing import check_packed, packed_bytes
from fedwsq.core.errors import ConfigError, MessageError
from fedwsq.core.types import Rate

SMALLEST_SCALE = 1e-12


@dataclass(frozen=True)
class Danuq:
    """Distribution-aware non-uniform quantization: the nearest of 2^bits levels, after division by the shared scale.

    Each packet's side value is the client's own std, from which `fold` moves the shared scale: by `momentum`, beta in
    the paper. `scale_init` is the scale of round 1; "calibrate" has every packet use its own scale until one was
    folded, and then starts from their mean. `dequantize = "shared"` decodes with the scale that encoded, as the
    published code does; "own" decodes with the client's std, the letter of Algorithm 1, so that a constant update
    decodes to zeros. With a `band` above 1, a tensor whose std is more than `band` times the shared scale, or less than
    1 / band of it, is coded with its own scale instead.
    """

    levels: Literal["paper", "optimal", "lloyd-max"] = "paper"
    momentum: float = 0.1
    scale_init: float | Literal["calibrate"] = 1e-3
    dequantize: Literal["shared", "own"] = "shared"
    band: float = 0.0  # 0: off
    scales: Scales = "tensor"
    block: int = 64
    wire_id: ClassVar[int] = 1

    def __post_init__(self) -> None:
        widths(self.levels)
        check_scales("danuq", self.scales, self.block)
        if not 0 < self.momentum <= 1:
            raise ConfigError(
                f"danuq momentum = {self.momentum} is out of range; it must be above 0 and at most 1"
            )
        start = math.nan if isinstance(self.scale_init, str) else self.scale_init
        if self.scale_init != "calibrate" and not SMALLEST_SCALE <= start <= MAX_MAGNITUDE:
            raise ConfigError(
                f"danuq scale_init = {self.scale_init} is out of range; it must be from "
                f'{SMALLEST_SCALE:g} to {MAX_MAGNITUDE:g}, or "calibrate"'
            )
        if self.dequantize not in ("shared", "own"):
            raise ConfigError(
                f'danuq dequantize = "{self.dequantize}" is unknown; it is "shared" or "own"'
            )
        if self.band != 0 and not 1 < self.band <= MAX_MAGNITUDE:
            raise ConfigError(
                f"danuq band = {self.band} is out of range; it must be above 1, or 0 for none"
            )

    @property
    def rates(self) -> frozenset[int]:
        """The bit widths that this kind of levels has."""
        return widths(self.levels)

    @property
    def unbiased(self) -> bool:
        """No: nearest rounding, and levels whose mean over N(0, 1) need not be zero."""
        return False

    def init(self, numel: int, rows: int = 1) -> Tensor:
        """The scales of round 1; 0 stands for one that is not known yet."""
        start = 0.0 if self.scale_init == "calibrate" else self.scale_init
        return torch.full((make_groups(numel, rows, self.scales, self.block).count,), start)

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """The code of the nearest level to each `x / scale`, and the std of `x` beside it."""
        bits, values, rows = self._bits(rate), resident_values(x), rows_of(x.shape)
        groups = make_groups(len(values), rows, self.scales, self.block)
        found = survey(values, groups)
        require_finite(float(found.largest.max()), "danuq")
        # One of several groups is zeros if and only if its side value is 0, so a constant one has its magnitude there.
        scales, local = shared.numpy(), as_scales(found.std if groups.count == 1 else found.scale)
        own = self._needs_own(scales, local)
        if own:
            scales = local = np.where(local > 0, local, as_scales(found.largest))
        if not found.largest.any():
            # A zero update decodes to zeros at every width, though one bit has no zero level.
            code, own = bytes(packed_bytes(len(values), bits)), True
        else:
            # In float32 on both sides, so that every implementation finds the same cell. A value on an edge goes to
            # the cell below it (the published code; the paper's half-open cells say above).
            scales = np.where(scales > 0, scales, np.float32(1))
            code = quantize(values, groups, scales, tables(levels(bits, self.levels))[1], bits)
        own = own or self.dequantize == "own"
        return Packet(code, tuple(local.tolist()), rate, len(values), own_scale=own, rows=rows)

    def check(self, packet: Packet) -> None:
        """Every code is a level, so only lengths and padding can be wrong."""
        check_sides(
            "danuq", packet.side, make_groups(packet.numel, packet.rows, self.scales, self.block)
        )
        if self.dequantize == "own" and not packet.own_scale:
            raise MessageError(
                'a danuq packet with dequantize = "own" is decoded with its own scale; its flag is missing'
            )
        check_packed(packet.code, self._bits(packet.rate), packet.numel)

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The level of each code, times the scale."""
        return self._look_up(packet, shared, 1.0)

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        """`out += weight * decode(packet)`, bit for bit."""
        self._look_up(packet, shared, weight, out)

    def fold(self, shared: Tensor, sides: Sequence[tuple[float, ...]]) -> Tensor:
        """The moving average of the clients' mean std; clients without spread are left out."""
        if not sides:
            return shared
        before, each = (
            shared.double().numpy(),
            np.array(sides, np.float64),
        )  # each: [packets, groups]
        spread = (each > 0).sum(0)
        momentum = np.where(before > 0, self.momentum, 1.0)  # the first scale is taken whole
        moved = (1 - momentum) * before + momentum * each.sum(0) / np.maximum(spread, 1)
        found = np.where(spread > 0, np.maximum(moved, SMALLEST_SCALE), before)
        return torch.from_numpy(found.astype(np.float32))

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """Exactly the packed codes."""
        return packed_bytes(numel, self._bits(rate))

    def side_values(self, numel: int, rows: int = 1) -> int:
        """One scale for each group."""
        return make_groups(numel, rows, self.scales, self.block).count

    def _needs_own(self, shared: Floats, local: Floats) -> bool:
        """Whether the shared scale is missing, not known yet or, with a band, too far off."""
        wanted = local > 0 if len(local) > 1 else slice(None)  # groups of zeros want none
        if not shared.size or not shared[wanted].all():
            return True
        ratio = local[local > 0] / shared[local > 0]
        return bool(self.band) and bool(((ratio > self.band) | (ratio < 1 / self.band)).any())

    def _bits(self, rate: Rate) -> int:
        if rate not in self.rates:
            offer = ", ".join(map(str, sorted(self.rates)))
            raise ConfigError(f"danuq has no {rate:g}-bit rate; it offers {offer}")
        return int(rate)

    def _look_up(
        self, packet: Packet, shared: Tensor, weight: float, out: Tensor | None = None
    ) -> Tensor:
        bits, groups = (
            self._bits(packet.rate),
            make_groups(packet.numel, packet.rows, self.scales, self.block),
        )
        scales = packet.side if packet.own_scale else shared.tolist()
        if len(scales) != groups.count:
            raise MessageError("a danuq packet leans on a shared scale that this end does not have")
        if (
            groups.count > 1 and not packet.own_scale
        ):  # a group of zeros stays zero, though one bit has no zero level
            scales = [
                scale if side else 0.0 for scale, side in zip(scales, packet.side, strict=True)
            ]
        return look_up(
            packet, bits, tables(levels(bits, self.levels))[0], scales, groups, weight, out
        )


@dataclass(frozen=True)
class Danuq8(Grid):
    """DANUQ's exact 256 levels with a scale of their own: made for the tensors that a link does not select."""

    wire_id: ClassVar[int] = 12

    @property
    def rates(self) -> frozenset[int]:
        """8 bits, nothing else."""
        return frozenset({8})

    def levels(self, bits: int) -> tuple[float, ...]:
        """The optimal levels with the uppermost at 1."""
        found = levels(bits, "optimal")
        return tuple(level / found[-1] for level in found)
