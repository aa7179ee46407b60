"""What a run shows: a live line on a terminal, a plain line a round when piped, a summary."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedwsq.federation.record import RoundRecord
from fedwsq.plan import plan_settings
from fedwsq.report.tensorboard import TensorBoard
from fedwsq.runs import Run, Summary


class _Console(Console):
    """A console that falls silent when its reader leaves (`| head`, `| less`).

    A run is more than what it prints.
    """

    def on_broken_pipe(self) -> None:
        """Say so once, and let everything that is printed from now on go nowhere."""
        self.quiet = True
        # What is still buffered, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with suppress(OSError):  # that reader may have had stderr as well
            print(
                "fedwsq: nobody reads the output any more; the run goes on. "
                "Ctrl-C stops it, fedwsq resume takes it up",
                file=sys.stderr,
            )


class _Lines:
    """For a pipe or a file: a line a round."""

    on_client = None

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._rounds = rounds

    def on_round(self, record: RoundRecord) -> None:
        self._console.print(_line(record, self._rounds))


class _Bar:
    """For a terminal: a bar that moves with every client."""

    def __init__(self, bar: Progress, done: int, rounds: int) -> None:
        self._bar = bar
        self._done = done
        self._last = "starting"
        self._task = bar.add_task(self._last, total=rounds, completed=done)

    def on_client(self, finished: int, asked: int) -> None:
        # Not quite full before the round is over: the server has work of its own.
        self._show(self._done + finished / asked * 0.99, f"{self._last}, client {finished}/{asked}")

    def on_round(self, record: RoundRecord) -> None:
        self._done = record.round
        self._last = _short(record)
        self._show(self._done, self._last)

    def _show(self, completed: float, text: str) -> None:
        self._bar.update(self._task, completed=completed, description=text, refresh=True)


def follow(run: Run, tensorboard: bool, keep_messages: bool) -> int:
    """Go on with a run to its end, or until Ctrl-C, and say what came of it: an exit code."""
    # Paths and reasons are printed as they are: what looks like markup in them is none.
    console = _Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    for warning in run.warnings:
        console.print(f"warning: {warning}", style="yellow")
    listeners: list[Callable[[RoundRecord], None]] = []
    board = TensorBoard(run.folder / "tensorboard") if tensorboard else None
    if board is not None:
        listeners.append(board.add)
    try:
        with _sigterm_interrupts(), _display(run, console) as display:
            listeners.append(display.on_round)
            summary = run.go(listeners, display.on_client, keep_messages)
    except KeyboardInterrupt:
        console.print(
            f"stopped; {run.summary().rounds} complete rounds are saved. "
            f"Go on with: fedwsq resume {quote(str(run.folder))}"
        )
        return 130
    finally:
        # What it has not yet written would be lost.
        if board is not None:
            board.close()
    console.print(summary_table(run, summary))
    return 0


@contextmanager
def _display(run: Run, console: Console) -> Iterator[_Lines | _Bar]:
    """Tell about rounds and clients in the way the console can show."""
    console.print(f"{run.folder}: {describe(run)}")
    # A bar that redraws itself is noise in a file.
    if not console.is_terminal:
        yield _Lines(console, run.plan.rounds)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield _Bar(bar, len(run.records), run.plan.rounds)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """A polite `kill` saves and stops as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def describe(run: Run) -> str:
    """The run in a line."""
    plan = run.plan
    named = plan_settings(plan)
    model = plan.model.build.name
    standardize = named["model"]["standardize"]["name"]
    if standardize != "none":
        model += f" with {standardize}"

    uplink = named["uplink"]["codec"]["name"]
    bits = named["uplink"]["bits"]
    if bits["name"] == "fixed":
        uplink += f" at {bits['bits']:g} bits"
    else:
        uplink += f", {bits['name']}"

    machine = run.machine
    workers = "worker" if machine.workers == 1 else "workers"
    return (
        f"{plan.data.load.name}, {plan.data.clients} clients, {plan.clients_per_round} a round; "
        f"{model}; {named['algorithm']['name']}; uplink {uplink}; "
        f"{machine.workers} {workers}, {machine.device.type}, {plan.training.precision}"
    )


def human_bytes(count: float) -> str:
    """`12.3 MB`, powers of ten."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def _short(record: RoundRecord) -> str:
    """`accuracy 0.9123, up 80.1 kB, down 480.2 kB`."""
    text = ""
    if record.accuracy is not None:
        usual = record.test_metric is None and record.validation_metric is None
        text = f"{'accuracy' if usual else 'metric'} {record.accuracy:.4f}, "
    text += f"up {human_bytes(record.uplink_bytes)}, down {human_bytes(record.downlink_bytes)}"
    if record.failed:
        text += f", {record.failed} failed"
    return text


def _line(record: RoundRecord, rounds: int) -> str:
    loss = "" if record.train_loss is None else f", train loss {record.train_loss:.4f}"
    why = "".join(f"; client {client}: {reason}" for client, reason in record.failures.items())
    return f"round {record.round}/{rounds}: {_short(record)}{loss}, {record.seconds:.2f} s{why}"


def summary_table(run: Run, summary: Summary) -> Table:
    """Accuracy and traffic of a finished run."""
    on = run.backend.evaluated_on  # test or validation
    table = Table(
        title=f"{run.folder} after {summary.rounds} rounds, {summary.seconds:.1f} s",
        show_header=False,
    )
    if summary.accuracy is not None and summary.best_accuracy is not None:
        table.add_row(f"{on} {run.plan.metric.name}", f"{summary.accuracy:.4f}")
        table.add_row("moving average (0.9)", f"{summary.accuracy_ema:.4f}")
        table.add_row("best", f"{summary.best_accuracy:.4f} in round {summary.best_round}")
    for name, count, factor in (
        ("uplink", summary.uplink_bytes, summary.uplink_factor),
        ("downlink", summary.downlink_bytes, summary.downlink_factor),
        ("total", summary.total_bytes, summary.total_factor),
    ):
        table.add_row(name, f"{count:,} bytes, {factor:.2f} times less than float32")
    table.add_row("weights", summary.weights)
    return table
