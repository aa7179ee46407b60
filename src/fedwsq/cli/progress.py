"""What a run shows: a live line on a terminal, a plain line a round when piped, a summary."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from shlex import quote
from types import FrameType

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedwsq.cli.bar import columns, fitted, room
from fedwsq.core.errors import RunError, disk_trouble
from fedwsq.federation.record import RoundRecord
from fedwsq.plan import plan_settings
from fedwsq.plan.read import Settings, dotted
from fedwsq.report.trackers import TRACKERS, Subject
from fedwsq.runs import Run, Summary
from fedwsq.runs.failures import LOG, ClientFailed
from fedwsq.runs.lines import line, reasons, short, times_less
from fedwsq.runs.watch import warn_of_loss
from fedwsq.wire import Link


class PatientConsole(Console):
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


def plain_console() -> PatientConsole:
    """Paths and reasons are printed as they are: what looks like markup in them is none."""
    return PatientConsole(highlight=False, soft_wrap=True, markup=False, emoji=False)


class _Lines:
    """For a pipe or a file: a line a round."""

    on_client = None

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._rounds = rounds

    def on_round(self, record: RoundRecord) -> None:
        self._console.print(line(record, self._rounds))


class _Bar:
    """For a terminal: a bar that moves with every client."""

    def __init__(self, bar: Progress, run: Run) -> None:
        self._bar = bar
        self._rounds = run.plan.rounds
        self._done = len(run.records)
        self._last = f"round {self._done + 1}"
        start = beginning(run, room(bar.console, self._rounds))
        self._task = bar.add_task(start, total=self._rounds, completed=self._done)

    def on_client(self, finished: int, asked: int) -> None:
        # Not quite full before the round is over: the server has work of its own.
        done = self._done + finished / asked * 0.99
        self._show(done, self._last, f"{finished}/{asked}")

    def on_round(self, record: RoundRecord) -> None:
        self._done = record.round
        self._last = short(record)
        self._show(self._done, self._last)
        # Above the bar, where it stays.
        why = reasons(record)
        if why:
            self._bar.console.print(f"round {record.round}: {why}")

    def _show(self, completed: float, text: str, clients: str = "") -> None:
        shown = fitted(text, clients, room(self._bar.console, self._rounds))
        self._bar.update(self._task, completed=completed, description=shown, refresh=True)


class _Warner:
    """Says when a code eats what it carries, and not again for ten rounds."""

    def __init__(self, console: Console, uplink: Link) -> None:
        self._console = console
        self._uplink = uplink
        self._quiet_until = 0

    def on_round(self, record: RoundRecord) -> None:
        text = warn_of_loss(record, self._uplink)
        if text is None or record.round < self._quiet_until:
            return
        self._console.print(f"warning: {text}", style="yellow")
        self._quiet_until = record.round + 10


def follow(run: Run, trackers: Sequence[str], keep_messages: bool, debug: bool = False) -> int:
    """Go on with a run to its end, or until Ctrl-C, and say what came of it: an exit code."""
    console = plain_console()
    for warning in run.warnings:
        console.print(f"warning: {warning}", style="yellow")
    subject = Subject(run.folder, run.id, dotted(plan_settings(run.plan)))
    tracked = [TRACKERS[name](subject) for name in trackers]
    listeners: list[Callable[[RoundRecord], None]] = [each.add for each in tracked]
    try:
        with sigterm_interrupts(), _display(run, console) as display:
            listeners.append(display.on_round)
            listeners.append(_Warner(console, run.plan.uplink).on_round)
            summary = run.go(listeners, display.on_client, keep_messages, debug)
    except KeyboardInterrupt:
        console.print(
            f"stopped; {run.summary().rounds} complete rounds are saved. "
            f"Go on with: fedwsq resume {quote(str(run.folder))}"
        )
        return 130
    except ClientFailed as failed:
        console.print(failed.traceback.rstrip() or str(failed))
        console.print(
            f"stopped at the first failure, {failed}. "
            f"Go on with: fedwsq resume {quote(str(run.folder))}"
        )
        return 1
    except OSError as error:
        trouble, way_out = disk_trouble(error, run.folder)
        raise RunError(
            f"{trouble}: what it has saved is whole; {way_out}, "
            f"then go on with: fedwsq resume {quote(str(run.folder))}"
        ) from None
    finally:
        # What they have not yet written would be lost.
        for each in tracked:
            each.close()
    console.print(summary_table(run, summary))
    privacy = run.spent()
    if privacy is not None:
        console.print(privacy.line())
    if (run.folder / LOG).exists():
        console.print(f"some clients failed; their whole tracebacks are in {run.folder / LOG}")
    return 0


@contextmanager
def _display(run: Run, console: Console) -> Iterator[_Lines | _Bar]:
    """Tell about rounds and clients in the way the console can show."""
    # In a file one line stays one line; on a terminal it breaks between words.
    console.print(f"{run.folder}: {describe(run)}", soft_wrap=not console.is_terminal)
    # A bar that redraws itself is noise in a file.
    if not console.is_terminal:
        yield _Lines(console, run.plan.rounds)
        return
    with Progress(*columns(console), console=console) as bar:
        yield _Bar(bar, run)


def beginning(run: Run, width: int) -> str:
    """What happens before the first client is done; workers take seconds to get ready."""
    workers = run.machine.workers
    if workers == 1:
        return fitted(f"round {len(run.records) + 1}, first client at work", "", width)
    return fitted(f"starting {workers} workers, each loads PyTorch and the data", "", width)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
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

    traffic = f"uplink {_code(named['uplink'])}"
    # In float32 unless somebody asked for less.
    if named["downlink"]["codec"]["name"] != "float32":
        traffic += f", downlink {_code(named['downlink'])}"

    machine = run.machine
    workers = "worker" if machine.workers == 1 else "workers"
    return (
        f"{plan.data.load.name}, {plan.data.clients} clients, {plan.clients_per_round} a round; "
        f"{model}; {named['algorithm']['name']}; {traffic}; "
        f"{machine.workers} {workers}, {machine.device.type}, {plan.training.precision}"
    )


def _code(link: Settings) -> str:
    """`ecq at 0.5 bits`, or the policy in place of the bits."""
    bits = link["bits"]
    if bits["name"] == "fixed":
        return f"{link['codec']['name']} at {bits['bits']:g} bits"
    return f"{link['codec']['name']}, {bits['name']}"


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
        table.add_row(name, f"{count:,} bytes, {times_less(factor)} than float32")
    table.add_row("precision", summary.precision)
    table.add_row("weights", summary.weights)
    return table
