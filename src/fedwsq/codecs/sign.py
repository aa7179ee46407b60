"""Sign: one bit a value and the mean magnitude (scaled signSGD; Karimireddy et al., 2019, arXiv:1901.09847)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwsq.codecs.grid import Grid


@dataclass(frozen=True)
class Sign(Grid):
    """The sign of each value times mean|x| of its group, the scale of least squared error; 0 counts as negative."""

    scale: Literal["absmax", "mean", "norm", "std", "fitted"] = "mean"
    wire_id: ClassVar[int] = 6

    @property
    def rates(self) -> frozenset[int]:
        """One bit, nothing else."""
        return frozenset({1})

    def levels(self, bits: int) -> tuple[float, ...]:
        """Minus and plus one."""
        return (-1.0, 1.0)
