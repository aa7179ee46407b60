"""What a codec is: a flat float32 vector to a `Packet` of real bytes, and back."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from fedwsq.core.types import Rate

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


class Codec(Protocol):
    """Flat float32 vector <-> `Packet`; `shared` is known to both ends before encoding.

    A codec is a frozen dataclass: its fields are its settings. The link checks `rates` and `max_bytes`; a codec may
    take them for granted in `decode` and `accumulate`.
    """

    wire_id: ClassVar[int]  # one byte in the message; 128 and above are free for codecs outside the package

    @property
    def rates(self) -> frozenset[int] | tuple[float, float]:
        """The bit widths on offer: a set, or a closed interval (entropy-coded)."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether the decoded value's expectation over `seed` is the input."""
        ...

    def init(self, numel: int) -> Tensor:
        """The shared state before the first round, a float32 vector; empty when nothing is shared."""
        ...

    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """Code `x`, which is flat, float32 and finite; it is not changed."""
        ...

    def check(self, packet: Packet) -> None:
        """Raise `MessageError` when the code itself carries values that must not reach a model."""
        ...

    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The vector that `packet` stands for."""
        ...

    def accumulate(self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float) -> None:
        """`out += weight * decode(packet)`, `out` flat and contiguous."""
        ...

    def fold(self, shared: Tensor, sides: Sequence[tuple[float, ...]]) -> Tensor:
        """The shared state after a round, from the side values of every accepted packet."""
        ...

    def max_bytes(self, numel: int, rate: Rate) -> int:
        """The longest `code` of this many elements; a fixed-rate codec sends exactly this."""
        ...
