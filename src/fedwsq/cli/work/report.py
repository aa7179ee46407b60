"""`fedwsq report`: runs as one page."""

import argparse
from pathlib import Path

from fedwsq.cli.outputs import require_folder, writing
from fedwsq.core.files import write_atomically
from fedwsq.report.page import Followed, Server, render
from fedwsq.report.page.words import count
from fedwsq.runs.lines import human_bytes
from fedwsq.runs.reading import read_runs

DEFAULT = Path("report.html")


def main(args: argparse.Namespace) -> int:
    """Write the page, or serve it until Ctrl-C."""
    if args.out or not args.watch:
        write(args.runs, args.out or DEFAULT)
    if args.watch:
        serve(args.runs, args.port)
    return 0


def write(runs: list[Path], out: Path) -> None:
    require_folder(out)
    readings = read_runs(runs)
    data = render(readings).encode()
    with writing(out):
        write_atomically(out, data)
    damaged = sum(run.damaged_rows for run in readings)
    lost = f"; {count(damaged, 'damaged row')} left out" if damaged else ""
    print(f"{out}: {count(len(readings), 'run')}, {human_bytes(len(data))}{lost}")


def serve(runs: list[Path], port: int) -> None:
    followed = Followed(runs)
    with Server(followed, port) as server:
        followed.page()  # what cannot be shown is said here, and the browser need not wait
        print(f"{server.address} follows these runs; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
