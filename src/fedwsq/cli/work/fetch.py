"""`fedwsq fetch`: download a data set from its publisher."""

import argparse
from dataclasses import replace
from shlex import join

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedwsq.core.errors import DataError, did_you_mean
from fedwsq.data.dataset import data_root
from fedwsq.data.download import Watcher
from fedwsq.data.fetch import fetch, kept_bytes
from fedwsq.data.sources import SOURCES, File
from fedwsq.runs.lines import human_bytes


def main(args: argparse.Namespace) -> int:
    if args.name is None:
        list_sources()
        return 0
    if args.name not in SOURCES:
        hint = did_you_mean(args.name, SOURCES)
        raise DataError(f"{args.name!r} cannot be fetched; there are {', '.join(SOURCES)}{hint}")
    source = SOURCES[args.name]
    source = replace(source, url=args.url or source.url)
    root = data_root(args.root)

    # Messages go to stderr, as they are; what looks like markup in a path is none.
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
    display = _Display(args.name, console)
    try:
        with display.bar:
            fetched = fetch(source, root, force=args.force, watcher=display)
    except KeyboardInterrupt:
        kept = human_bytes(kept_bytes(source, root))
        console.print(f"stopped; {kept} are kept. Go on with: {join(_command(args))}")
        return 130
    folder = root / source.folder
    if fetched:
        print(f"{args.name} is in {folder}")
    else:
        print(f"{args.name} is already in {folder}; --force fetches it again")
    return 0


def list_sources() -> None:
    """What can be fetched, how large it is, on which terms."""
    for name, source in SOURCES.items():
        size = human_bytes(sum(file.bytes for file in source.files))
        print(f"{name:13}  {size:>8}  {source.title}, from {source.url}")
        print(f"{'':25}terms: {source.terms}\n{'':25}cite: {source.cite}")


def _command(args: argparse.Namespace) -> list[str]:
    """The command as it was given."""
    words = ["fedwsq", "fetch", args.name]
    if args.root:
        words += ["--root", args.root]
    if args.url:
        words += ["--url", args.url]
    if args.force:
        words += ["--force"]
    return words


class _Display(Watcher):
    """A line for each thing to say, and a bar for each file where there is a terminal."""

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def note(self, text: str) -> None:
        self._console.print(f"{self._name}: {text}")

    def received(self, file: File, have: int) -> None:
        if file.name not in self._tasks:
            self.note(f"{file.name}, {human_bytes(file.bytes)}")
            self._tasks[file.name] = self.bar.add_task(file.name, total=file.bytes)
        self.bar.update(self._tasks[file.name], completed=have)
