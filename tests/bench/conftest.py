"""Time that passes only where a test says so: figures can then be worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from fedwsq.bench import figure


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, work: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        """The same work, done in so many seconds; they may depend on what it is given."""

        def timed(*given: Any) -> Any:
            self.now += seconds(*given)
            return work(*given)

        return timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The only clock there is for `figure.seconds`."""
    clock = Clock()
    monkeypatch.setattr(figure, "time", clock)
    return clock
