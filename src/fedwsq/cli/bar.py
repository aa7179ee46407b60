"""The live line of a run: what fits of it, on a terminal of any width."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

NARROW = 60  # columns; below, numbers matter more than a bar
LEAST_BAR = 4
CLOCK = len("0:00:00")


class Clock(TimeRemainingColumn):
    """The time there is to go; the time since the start, as long as nobody can tell."""

    def render(self, task: Task) -> Text:
        if task.time_remaining is not None:
            return super().render(task)
        minutes, seconds = divmod(int(task.elapsed or 0), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02}", style="progress.elapsed")


def columns(console: Console) -> list[ProgressColumn]:
    # Only the bar gives way: rich cuts columns that may wrap before those that may not.
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))
    clock = Clock(table_column=Column(no_wrap=True))
    shown = [count, TextColumn("{task.description}"), clock]
    if console.width < NARROW:
        return shown
    return [BarColumn(), *shown]


def room(console: Console, rounds: int) -> int:
    """What the other columns leave to the text."""
    count = 2 * len(str(rounds)) + 1
    taken = count + CLOCK + 2
    if console.width >= NARROW:
        taken += LEAST_BAR + 1
    return console.width - taken


def fitted(text: str, clients: str, width: int) -> str:
    """`text, client 3/5` in this many columns: the text's last parts go first.

    >>> fitted("accuracy 0.9123, up 80.1 kB", "3/5", 32)
    'accuracy 0.9123, client 3/5'
    >>> fitted("accuracy 0.9123, up 80.1 kB", "3/5", 26)
    'accuracy 0.9123, 3/5'
    """
    parts = text.split(", ")
    while len(parts) > 1 and len(_joined(parts, clients)) > width:
        parts.pop()
    whole = _joined(parts, clients)
    if len(whole) <= width:
        return whole
    return whole.replace("client ", "")


def _joined(parts: list[str], clients: str) -> str:
    if not clients:
        return ", ".join(parts)
    return ", ".join([*parts, f"client {clients}"])
