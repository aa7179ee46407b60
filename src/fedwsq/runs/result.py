"""What `fedwsq.run` gives back."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedwsq.runs.run import Run
from fedwsq.runs.summary import Summary


@dataclass(frozen=True)
class Result:
    """A finished run: its rows, its model, its folder and what it came to.

    The summary's figures are to be had directly: `result.accuracy`, `result.uplink_factor`. Only
    its number of rounds is not, as `rounds` are the rows themselves.
    """

    summary: Summary
    folder: Path
    rounds: list[dict[str, Any]] = field(repr=False)  # for pandas.DataFrame and the like
    # Plain layers with the trained weights, for inputs as the run's data set normalizes them.
    model: nn.Module = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        # Copying asks for special methods before there is a summary.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.summary, name)


def result_of(run: Run) -> Result:
    rows = [asdict(record) for record in run.records]
    return Result(run.summary(), run.folder, rows, run.model())
