"""Round records as TensorBoard scalars (extra: `tensorboard`)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedwsq.core.errors import ConfigError
from fedwsq.federation.record import RoundRecord

NO_SCALARS = ("round", "seed")  # numbers that name a record rather than measure something


def summary_writer() -> Any:
    """TensorBoard's writer class, or an error that says how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "--tensorboard needs an extra: pip install 'fedwsq[tensorboard]'"
        ) from None
    return SummaryWriter


class TensorBoard:
    """Writes every number of every record under its own name."""

    def __init__(self, folder: Path) -> None:
        self._writer = summary_writer()(str(folder))

    def add(self, record: RoundRecord) -> None:
        for name, value in asdict(record).items():
            if isinstance(value, int | float) and name not in NO_SCALARS:
                self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self._writer.close()
