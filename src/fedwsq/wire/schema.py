"""Agreed before the first message: the names and shapes of the tensors that travel."""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property

import torch

from fedwsq.codecs.base import rows_of
from fedwsq.core.types import Params, Shapes


@dataclass(frozen=True)
class Schema:
    """The tensors of a model in its order; a message carries their digest, not their names."""

    shapes: Shapes
    # 16 bytes that stand for the model's tensors that never travel; none if all do.
    frozen: bytes = b""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.shapes)}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of elements of each tensor."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    @cached_property
    def elements(self) -> int:
        """Of all tensors together."""
        return sum(self.sizes.values())

    @cached_property
    def rows(self) -> dict[str, int]:
        """The output channels of each tensor."""
        return {name: rows_of(shape) for name, shape in self.shapes.items()}

    def zeros(self) -> Params:
        """Tensors of these names and shapes, for where no more of them counts."""
        return {name: torch.zeros(shape) for name, shape in self.shapes.items()}

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that stand for all names and shapes, and for what is frozen."""
        listed = [[name, list(shape)] for name, shape in self.shapes.items()]
        text = json.dumps(listed).encode()
        return hashlib.blake2b(text + self.frozen, digest_size=16).digest()
