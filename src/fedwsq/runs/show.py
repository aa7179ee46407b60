"""What `fedwsq.run` shows while it is going: a line a round, or one that changes in a notebook."""

import sys
from typing import Protocol

from fedwsq.federation.record import RoundRecord
from fedwsq.runs.lines import line, reasons


class Show(Protocol):
    """Is told how a run goes; everything that it shows is in the run's rows too."""

    def note(self, text: str) -> None: ...

    def on_client(self, finished: int, asked: int) -> None: ...

    def on_round(self, record: RoundRecord) -> None: ...

    def end(self) -> None: ...


class Silent:
    """Nothing."""

    def note(self, text: str) -> None:
        pass

    def on_client(self, finished: int, asked: int) -> None:
        pass

    def on_round(self, record: RoundRecord) -> None:
        pass

    def end(self) -> None:
        pass


class Lines(Silent):
    """For scripts: on stderr, so that what the script prints stays what it was."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def on_round(self, record: RoundRecord) -> None:
        self.note(line(record, self.rounds))


class Changing:
    """For notebooks: one line, written over with every client; failures stay.

    So does every round if others are `talkative`, whose words would end up in the same line.
    """

    def __init__(self, rounds: int, talkative: bool = False) -> None:
        self.rounds = rounds
        self.talkative = talkative
        self._last = "starting"
        self._width = 0

    def note(self, text: str) -> None:
        self._write(text)
        self.end()

    def on_client(self, finished: int, asked: int) -> None:
        self._write(f"{self._last}; client {finished}/{asked}")

    def on_round(self, record: RoundRecord) -> None:
        self._last = line(record, self.rounds).partition(";")[0]
        if record.failures:
            self.note(f"round {record.round}: {reasons(record)}")
        self._write(self._last)
        if self.talkative:
            self.end()

    def end(self) -> None:
        print(flush=True)
        self._width = 0

    def _write(self, text: str) -> None:
        # As wide as the line before, which would show behind this one otherwise.
        print(f"\r{text.ljust(self._width)}", end="", flush=True)
        self._width = len(text)


def way_to_show(progress: bool, rounds: int, talkative: bool) -> Show:
    if not progress:
        return Silent()
    return Changing(rounds, talkative) if in_notebook() else Lines(rounds)


def in_notebook() -> bool:
    """Whether a kernel runs this; who has not imported IPython is in none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
