"""`fedwsq verify`: run a receipt again, and compare."""

import argparse
import tempfile
from pathlib import Path

from rich.progress import Progress

from fedwsq.cli.bar import columns
from fedwsq.cli.progress import plain_console, sigterm_interrupts
from fedwsq.cli.trust import vouching
from fedwsq.core.text import printable
from fedwsq.federation.record import RoundRecord
from fedwsq.plan import parse_overrides
from fedwsq.runs.reading import read_run
from fedwsq.runs.receipt import read_receipt
from fedwsq.runs.verify import Differs, Verification

ELSEWHERE = (
    "This need not be a fault: the receipt was made with what the warning names. Float arithmetic "
    "is the same\nonly on the same kind of processor with the same versions; elsewhere hold the "
    "accuracies side by side."
)


def main(args: argparse.Namespace) -> int:
    receipt = read_receipt(args.receipt)
    places = parse_overrides(args.words)
    rows = read_run(args.receipt).rows if args.receipt.is_dir() else ()
    verification = Verification(receipt, places, args.rounds, args.workers, args.device, rows)
    with vouching(args.receipt, verification.settings(), (), args.trust):
        return verify(verification, args)


def verify(verification: Verification, args: argparse.Namespace) -> int:
    console = plain_console()
    warnings: list[str] = []
    with (
        sigterm_interrupts(),
        tempfile.TemporaryDirectory(prefix="fedwsq-verify-") as folder,
        Progress(*columns(console), console=console, disable=not console.is_terminal) as bar,
    ):
        try:
            with verification.opened(Path(folder, "run"), args.checkpoint) as run:
                warnings += verification.warnings(run)
                for warning in warnings:
                    console.print(printable(f"warning: {warning}"), style="yellow")
                task = bar.add_task("repeating", total=run.plan.rounds)

                def show(record: RoundRecord) -> None:
                    text = f"round {record.round} is the same"
                    bar.update(task, completed=record.round, description=text)

                verification.repeat(run, show)
        except Differs as error:
            console.print(printable(f"{args.receipt}: {error}"))
            if warnings:
                console.print(ELSEWHERE)
            return 1
    repeated = run.records
    what = "accuracies, bytes, packets and weights" if verification.rows else "packets and weights"
    console.print(
        f"{args.receipt}: rounds {repeated[0].round} to {repeated[-1].round} give the same {what}, "
        f"{repeated[-1].weights}"
    )
    return 0
