"""Round records as TensorBoard scalars (extra: `tensorboard`)."""

from dataclasses import asdict
from pathlib import Path

from fedwsq.core.errors import ConfigError
from fedwsq.federation.records import RoundRecord


class TensorBoard:
    """Writes every number of every record under its own name."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("--tensorboard needs an extra: pip install 'fedwsq[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder))

    def add(self, record: RoundRecord) -> None:
        """One round."""
        for name, value in asdict(record).items():
            if isinstance(value, int | float) and name not in ("round", "seed"):
                self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        """Flush to disk."""
        self._writer.close()
