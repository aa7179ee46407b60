"""What a run shows while it runs: a live line on a terminal, a plain line a round when piped, a summary at the end."""

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
from fedwsq.plan.build import plan_settings
from fedwsq.report.tensorboard import TensorBoard
from fedwsq.runs.run import Run, Summary


class _Console(Console):
    """A console that falls silent when its reader leaves (`| head`, `| less`): a run is more than what it prints."""

    def on_broken_pipe(self) -> None:
        """Say so once, and let everything that is printed from now on go nowhere."""
        self.quiet = True
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # what is still buffered, too
        with suppress(OSError):  # that reader may have had stderr as well
            print(
                "fedwsq: nobody reads the output any more; the run goes on. Ctrl-C stops it, fedwsq resume takes it up",
                file=sys.stderr,
            )


def follow(run: Run, tensorboard: bool, keep_messages: bool) -> int:
    """Go on with a run to its end, or until Ctrl-C, and say what came of it. Returns the exit code."""
    # Paths and reasons are printed as they are: what looks like markup in them is none.
    console = _Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    for warning in run.warnings:
        console.print(f"warning: {warning}", style="yellow")
    listeners: list[Callable[[RoundRecord], None]] = []
    board = TensorBoard(run.folder / "tensorboard") if tensorboard else None
    if board is not None:
        listeners.append(board.add)
    try:
        with _sigterm_interrupts(), _display(run, console, listeners) as on_client:
            summary = run.go(listeners, on_client, keep_messages)
    except KeyboardInterrupt:
        rounds = run.summary().rounds
        console.print(
            f"stopped; {rounds} complete rounds are saved. Go on with: fedwsq resume {quote(str(run.folder))}"
        )
        return 130
    finally:
        if board is not None:
            board.close()
    console.print(summary_table(run, summary))
    return 0


@contextmanager
def _display(
    run: Run, console: Console, listeners: list[Callable[[RoundRecord], None]]
) -> Iterator[Callable[[int, int], None] | None]:
    """Tell about rounds in the way the console can show; yields what to call as clients finish."""
    rounds = run.plan.rounds
    console.print(f"{run.folder}: {describe(run)}")
    if not console.is_terminal:
        listeners.append(lambda record: console.print(_line(record, rounds)))
        yield None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        done = len(run.records)
        last = "starting"
        task = bar.add_task(last, total=rounds, completed=done)

        def on_client(finished: int, asked: int) -> None:
            text = f"{last}, client {finished}/{asked}"
            bar.update(
                task, completed=done + finished / asked * 0.99, description=text, refresh=True
            )

        def on_round(record: RoundRecord) -> None:
            nonlocal done, last
            done, last = record.round, _short(record)
            bar.update(task, completed=done, description=last, refresh=True)

        listeners.append(on_round)
        yield on_client


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
    plan, named = run.plan, plan_settings(run.plan)
    standardize, uplink = named["model"]["standardize"]["name"], named["uplink"]
    bits = (
        f" at {uplink['bits']['bits']:g} bits"
        if uplink["bits"]["name"] == "fixed"
        else f", {uplink['bits']['name']}"
    )
    return (
        f"{plan.data.load.name}, {plan.data.clients} clients, {plan.clients_per_round} a round; "
        f"{plan.model.build.name}{'' if standardize == 'none' else f' with {standardize}'}; "
        f"{named['algorithm']['name']}; uplink {uplink['codec']['name']}{bits}; "
        f"{run.workers} worker{'s' if run.workers > 1 else ''}, {run.device.type}, {plan.training.precision}"
    )


def human_bytes(count: float) -> str:
    """`12.3 MB`, powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _short(record: RoundRecord) -> str:
    name = (
        "metric"
        if record.test_metric is not None or record.validation_metric is not None
        else "accuracy"
    )
    accuracy = "" if record.accuracy is None else f"{name} {record.accuracy:.4f}, "
    failed = f", {record.failed} failed" if record.failed else ""
    return f"{accuracy}up {human_bytes(record.uplink_bytes)}, down {human_bytes(record.downlink_bytes)}{failed}"


def _line(record: RoundRecord, rounds: int) -> str:
    loss = "" if record.train_loss is None else f", train loss {record.train_loss:.4f}"
    why = "".join(f"; client {client}: {reason}" for client, reason in record.failures.items())
    return f"round {record.round}/{rounds}: {_short(record)}{loss}, {record.seconds:.2f} s{why}"


def summary_table(run: Run, summary: Summary) -> Table:
    """Accuracy and traffic of a finished run."""
    on = run.workload.evaluated[0]
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
