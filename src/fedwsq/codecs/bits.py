"""Bit policies: how many bits a client spends. Asked on the server; the answer travels in the order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedwsq.core.types import Channel, Key, Rate


class BitPolicy(Protocol):
    """Sees identities, sizes and channels, never tensors. One rate, one for each tensor, or None: sits out."""

    def __call__(
        self, key: Key, channel: Channel | None, sizes: Mapping[str, int], shared: Mapping[str, Tensor]
    ) -> Rate | Mapping[str, Rate] | None:
        """The rate for this piece of work; `sizes` and `shared` are by tensor name."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same rate for everyone, always."""

    bits: float = 32

    def __call__(
        self, key: Key, channel: Channel | None, sizes: Mapping[str, int], shared: Mapping[str, Tensor]
    ) -> Rate:
        """`bits`."""
        return self.bits


BITS: dict[str, type[BitPolicy]] = {"fixed": Fixed}
