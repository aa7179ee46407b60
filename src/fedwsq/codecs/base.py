"""What a codec is: a flat float32 vector to a `Packet` of real bytes, and back."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwsq.codecs.rates import Rates
from fedwsq.core.errors import ConfigError, UpdateError
from fedwsq.core.types import Rate

Values = NDArray[np.float32] | Tensor  # elements in a row: an array on the CPU, a tensor on a GPU
Side = tuple[float, ...]  # the few numbers that travel beside a code: its scales, or a step
# The devices whose tensors are coded as arrays, on the CPU: mps has no float64.
AS_ARRAYS = ("cpu", "mps")
# Nothing real comes near it, and weight x scale x level summed over any cohort stays finite below.
MAX_MAGNITUDE = 1e20


class Packet(NamedTuple):
    """One coded tensor."""

    code: bytes
    side: Side
    rate: Rate
    numel: int
    own_scale: bool = False  # decode with the scales in `side` instead of the shared ones
    codec: int = 0  # the codec's `wire_id`, stamped by the link that sends the packet
    rows: int = 1  # the tensor's output channels, its first dimension; 1 for a vector


class Steps(NamedTuple):
    """Codes that add up: code k stands for scale x (lowest + step x k)."""

    lowest: float
    step: float


class Extent(NamedTuple):
    """How large decoded values are."""

    largest: float = 0.0  # max|x|, NaN if any is
    energy: float = 0.0  # their squared norm


class Codec(Protocol):
    """Float32 tensor <-> `Packet`; `shared` is known to both ends before encoding.

    A codec is a frozen dataclass: its fields are its settings. It sees the elements in a row, and
    of the tensor's shape only how many output channels there are. What is coded, and what is added
    to, may be on any device; `shared` and all that comes out is on the CPU. The link checks `rates`
    and `max_bytes`; a codec may take them for granted in `decode` and `accumulate`.

        packet = codec.encode(x, shared, 4, seed)
        codec.check(packet)                              # at the other end
        update = codec.decode(packet, shared, seed).view(x.shape)
        shared = codec.fold(shared, [packet.side, ...])  # for the next round
    """

    # One byte in the message. Taken are
    #      0 float32     1 danuq       2 uq          3 qsgd        4 nf          5 fp
    #      6 sign        7 topk        8 eden        9 rotated    11 float16    12 danuq8
    #     13 ecq        14 integers   15 votes      16 danuq4
    # with 14 in `parts/integers`, 15 in `federation/phases`, and 10 retired for good. 128 and above
    # are free for codecs outside the package. `docs/wire-format.md` says what stands behind each.
    wire_id: ClassVar[int]
    # Whether `seed` has any effect; where it has none, nobody derives one.
    draws: ClassVar[bool] = True

    def __hash__(self) -> int:
        """Equal settings, equal hash: what was once measured of a codec is remembered."""
        return object.__hash__(self)  # a dataclass that is frozen has its own

    @property
    @abstractmethod
    def rates(self) -> Rates:
        """The bits a parameter on offer: a few, or an interval (coded by entropy)."""

    @property
    def unbiased(self) -> bool:
        """Whether the decoded value's expectation over `seed` is the input."""
        return False

    def steps(self, rate: Rate) -> Steps | None:
        """The code's even steps around one shared scale; None if its codes do not add up."""
        return None

    @abstractmethod
    def init(self, numel: int, rows: int = 1) -> Tensor:
        """The shared state before the first round, a float32 vector; empty if nothing is shared."""

    @abstractmethod
    def encode(self, x: Tensor, shared: Tensor, rate: Rate, seed: int) -> Packet:
        """Code `x`, float32 of any shape; it is not changed.

        With an empty `shared` the packet stands for itself. `ConfigError` for a rate that is not on
        offer, `UpdateError` for an update that is not finite.
        """

    @abstractmethod
    def check(self, packet: Packet) -> None:
        """Raise `MessageError` unless `decode` would make finite values of the packet.

        It may come from anybody: whatever passes must not harm a model.
        """

    @abstractmethod
    def decode(self, packet: Packet, shared: Tensor, seed: int) -> Tensor:
        """The vector that `packet` stands for, flat; `shared` and `seed` are those of `encode`."""

    def accumulate(
        self, packet: Packet, shared: Tensor, seed: int, out: Tensor, weight: float
    ) -> None:
        """`out += weight * decode(packet)`, bit for bit; `out` is flat and contiguous.

        A codec that need not unpack the whole vector for it has its own.
        """
        add_weighted(out, self.decode(packet, shared, seed), weight)

    def extent(self, packet: Packet, shared: Tensor, seed: int) -> Extent:
        """How large the decoded values are: what a server asks before it adds them.

        A codec that need not unpack them for it has its own.
        """
        return extent_of(flat_values(self.decode(packet, shared, seed)))

    @abstractmethod
    def fold(self, shared: Tensor, sides: Sequence[Side]) -> Tensor:
        """The shared state after a round, from the `side` of every accepted packet."""

    @abstractmethod
    def max_bytes(self, numel: int, rate: Rate) -> int:
        """The longest `code` of this many elements; with `rates.fixed_length`, the only length."""

    @abstractmethod
    def side_values(self, numel: int, rows: int = 1) -> int:
        """How many numbers the `side` of each packet of such a tensor has."""


class Stateless(Codec):
    """What a codec needs whose packets stand for themselves: nothing is shared, nothing learned.

    Left to write: `wire_id`, `rates`, `encode`, `decode`, `check` and `max_bytes`; `side_values`
    where there are any, and `unbiased` where it is.
    """

    def __post_init__(self) -> None:
        require_known(self)

    def init(self, numel: int, rows: int = 1) -> Tensor:
        return torch.empty(0)

    def fold(self, shared: Tensor, sides: Sequence[Side]) -> Tensor:
        return shared

    def side_values(self, numel: int, rows: int = 1) -> int:
        return 0


def name_of(codec: object) -> str:
    """What errors call a codec."""
    return type(codec).__name__.lower()


def require_known(codec: Any) -> None:
    """Refuse a setting that is none of the words that its field's type lists."""
    for field, hint in get_type_hints(type(codec)).items():
        if get_origin(hint) is not Literal:
            continue
        words = [f'"{word}"' for word in get_args(hint)]
        value = getattr(codec, field)
        if value not in get_args(hint):
            raise ConfigError(
                f'{name_of(codec)} {field} = "{value}" is unknown; '
                f"it is {', '.join(words[:-1])} or {words[-1]}"
            )


def rows_of(shape: Sequence[int]) -> int:
    """The output channels of a weight; a vector has one row, and so has a tensor of nothing."""
    if len(shape) < 2 or 0 in shape:
        return 1
    return shape[0]


def on_gpu(x: Tensor) -> bool:
    """Whether `x` is worked on where it is, by torch; nothing else decides who does the work."""
    return x.device.type not in AS_ARRAYS


def resident_values(x: Tensor) -> Values:
    """The elements of `x` in a row; on a GPU they stay there."""
    if on_gpu(x):
        return x.detach().float().reshape(-1)
    return flat_values(x)


def flat_values(x: Tensor) -> NDArray[np.float32]:
    """The elements of `x` in a row, on the CPU and side by side."""
    if not x.is_cpu or x.dtype != torch.float32:
        x = x.float().cpu()
    values: NDArray[np.float32] = x.detach().numpy().ravel()
    return values


def finite_values(x: Tensor, codec: str) -> NDArray[np.float32]:
    """The elements of `x` in a row, on the CPU; what is not finite or beyond reason is refused."""
    values = flat_values(x)
    require_finite(largest_magnitude(values), codec)
    return values


def largest_magnitude(values: Values) -> float:
    """max|x|, NaN if any is; 0 of nothing."""
    if not len(values):
        return 0.0
    top = max(float(values.max()), -float(values.min()))
    return abs(top)  # of zeros alone it may be -0


def extent_of(values: NDArray[np.float32]) -> Extent:
    """Of values as they are; in float64, so that no square overflows."""
    energy = float(np.add.reduce(np.square(values, dtype=np.float64)))
    return Extent(largest_magnitude(values), energy)


def require_finite(largest: float, codec: str) -> None:
    """Refuse values by their largest magnitude; the way out is for those to say who gave them."""
    if not largest <= MAX_MAGNITUDE:  # NaN fails too
        raise UpdateError(
            f"{codec} cannot code values that are not finite or above {MAX_MAGNITUDE:g}"
        )


def add_weighted(out: Tensor, decoded: Tensor, weight: float) -> None:
    """`out += weight * decoded`; `out` is on any device, `decoded` is used up.

    Two roundings, what a plain loop gives, unlike `add_(alpha=weight)`.
    """
    out += decoded.mul_(weight).to(out.device)
