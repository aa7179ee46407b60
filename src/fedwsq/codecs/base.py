"""What a codec is: a flat float32 vector to a `Packet` of real bytes, and back."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.core.errors import UpdateError
from fedwsq.core.types import Rate

Values = NDArray[np.float32] | Tensor  # elements in a row: an array on the CPU, a tensor on a GPU
AS_ARRAYS = (
    "cpu",
    "mps",
)  # the devices whose tensors are coded as arrays, on the CPU; mps has no float64
# Nothing real comes near it, and weight x scale x level summed over any cohort stays finite below it.
MAX_MAGNITUDE = 1e20


class Packet(NamedTuple):
    """One coded tensor. `own_scale`: decode with the scale in `side` instead of the shared one."""

    code: bytes
    side: tuple[float, ...]
    rate: Rate
    numel: int
    own_scale: bool = False
    codec: int = 0  # the codec's `wire_id`, stamped by the link that sends the packet
    rows: int = 1  # the tensor's output channels, its first dimension; 1 for a vector


class Codec(Protocol):
    """Float32 tensor <-> `Packet`; `shared` is known to both ends before encoding.

    A codec is a frozen dataclass: its fields are its settings. It sees the elements in a row, and of the tensor's shape
    only how many output channels there are. What is coded, and what is added to, may be on any device; `shared` and all
    that comes out is on the CPU. The link checks `rates` and `max_bytes`; a codec may take them for granted in `decode`
    and `accumulate`.
    """

    wire_id: ClassVar[
        int
    ]  # one byte in the message; 128 and above are free for codecs outside the package

    @property
    def rates(self) -> frozenset[int] | tuple[float, float]:
        """The bit widths on offer: a set, or a closed interval (entropy-coded)."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether the decoded value's expectation over `seed` is the input."""
        ...

    def init(self, numel: int, rows: int = 1) -> Tensor:
        """The shared state before the first round, a float32 vector; empty when nothing is shared."""
        ...

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """Code `x`, float32 of any shape; it is not changed. Without a `shared` state the packet stands for itself."""
        ...

    def check(self, packet: Packet) -> None:
        """Raise `MessageError` when the code itself carries values that must not reach a model."""
        ...

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The vector that `packet` stands for, flat."""
        ...

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        """`out += weight * decode(packet)`, `out` flat and contiguous."""
        ...

    def fold(self, shared: Tensor, sides: Sequence[tuple[float, ...]]) -> Tensor:
        """The shared state after a round, from the side values of every accepted packet."""
        ...

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """The longest `code` of this many elements; a fixed-rate codec sends exactly this."""
        ...

    def side_values(self, numel: int, rows: int = 1) -> int:
        """How many side values each packet of such a tensor carries."""
        ...


class Alone:
    """What codecs have in common whose packets stand for themselves, with nothing shared."""

    def init(self, numel: int, rows: int = 1) -> Tensor:
        """Nothing."""
        return torch.empty(0)

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The vector that `packet` stands for, flat."""
        raise NotImplementedError

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        """`out += weight * decode(packet)`, bit for bit."""
        add_weighted(out, self.decode(packet, shared, seed), weight)

    def fold(self, shared: Tensor, sides: Sequence[tuple[float, ...]]) -> Tensor:
        """Nothing to learn."""
        return shared


def rows_of(shape: Sequence[int]) -> int:
    """The output channels of a weight; a vector has one row."""
    return shape[0] if len(shape) > 1 and 0 not in shape else 1


def on_gpu(x: Tensor) -> bool:
    """Whether `x` is worked on where it is, by torch; nothing else decides who does the work."""
    return x.device.type not in AS_ARRAYS


def resident_values(x: Tensor) -> Values:
    """The elements of `x` in a row; on a GPU they stay there."""
    return x.detach().float().reshape(-1) if on_gpu(x) else flat_values(x)


def flat_values(x: Tensor) -> NDArray[np.float32]:
    """The elements of `x` in a row, on the CPU and side by side."""
    return np.ascontiguousarray(x.detach().float().reshape(-1).cpu().numpy())


def finite_values(x: Tensor, codec: str) -> NDArray[np.float32]:
    """The elements of `x` in a row, on the CPU; an update that is not finite, or beyond all reason, is refused."""
    values = flat_values(x)
    require_finite(largest_magnitude(values), codec)
    return values


def largest_magnitude(values: Values) -> float:
    """max|x|, NaN if any is; 0 of nothing."""
    return max(float(values.max()), -float(values.min())) if len(values) else 0.0


def require_finite(largest: float, codec: str) -> None:
    """Refuse an update by its largest magnitude."""
    if not largest <= MAX_MAGNITUDE:  # NaN fails too
        raise UpdateError(
            f"{codec} cannot code an update that is not finite or above {MAX_MAGNITUDE:g}; "
            "lower the learning rate or clip"
        )


def add_weighted(out: Tensor, decoded: Tensor, weight: float) -> None:
    """`out += weight * decoded` with two roundings: what a plain loop gives, unlike `add_(alpha=weight)`.

    `out` is on any device; `decoded` is used up.
    """
    out += decoded.mul_(weight).to(out.device)
