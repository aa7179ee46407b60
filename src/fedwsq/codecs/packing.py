"""Codes of 1 to 8 bits to bytes and back.

Code k fills bits [k * bits, (k + 1) * bits) of the stream, where bit i of the stream is bit i % 8 of byte i // 8, least
significant first; a code's own lowest bit comes first. Unused bits of the last byte are zero.
"""

import numpy as np
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError, MessageError


def packed_bytes(count: int, bits: int) -> int:
    """How many bytes `count` codes take."""
    if bits not in range(1, 9):
        raise ConfigError(f"a packed code has 1 to 8 bits, not {bits}")
    return (count * bits + 7) // 8


def pack(codes: Tensor, bits: int) -> bytes:
    """The bytes of `codes`, uint8 and each below 2^bits."""
    values = codes.numpy(force=True)
    size = packed_bytes(len(values), bits)
    if values.max(initial=0) >> bits:
        raise ValueError(f"code {values.max()} does not fit in {bits} bits")
    if 8 % bits:
        planes = np.unpackbits(values[:, None], axis=1, count=bits, bitorder="little")  # [n, bits]
        return np.packbits(planes, bitorder="little").tobytes()
    per_byte = 8 // bits
    grid = np.pad(values, (0, size * per_byte - len(values))).reshape(size, per_byte)
    packed = grid[:, 0].copy()
    for k in range(1, per_byte):
        packed |= grid[:, k] << k * bits
    return packed.tobytes()


def unpack(data: bytes, bits: int, count: int) -> Tensor:
    """The `count` codes in `data`, uint8."""
    check_packed(data, bits, count)
    packed = np.frombuffer(data, np.uint8)
    if 8 % bits:
        planes = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
        return torch.from_numpy(np.packbits(planes, axis=1, bitorder="little").reshape(count))
    grid = np.empty((len(packed), 8 // bits), np.uint8)
    for k in range(8 // bits):
        grid[:, k] = (packed >> k * bits) & (2**bits - 1)
    return torch.from_numpy(grid.reshape(-1)[:count])


def check_packed(data: bytes, bits: int, count: int) -> None:
    """Raise `MessageError` unless `data` is what `pack` makes of some `count` codes."""
    size = packed_bytes(count, bits)
    if len(data) != size:
        raise MessageError(f"{count} codes of {bits} bits take {size} bytes, not {len(data)}")
    spare = 8 * size - count * bits
    if spare and data[-1] >> (8 - spare):
        raise MessageError(
            f"the {spare} bits after {count} codes of {bits} bits must be zero; the code is damaged"
        )
