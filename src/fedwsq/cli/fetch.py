"""`fedwsq fetch`: download a data set from its publisher."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
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

from fedwsq.cli.progress import human_bytes
from fedwsq.core.errors import DataError, did_you_mean
from fedwsq.data.dataset import data_root
from fedwsq.data.fetch import SOURCES, File, Watcher, fetch, kept_bytes

EXAMPLES = """\
A run never downloads by itself. A download that was stopped goes on when the command is given again.
The data root is DIR, else the environment variable FEDWSQ_DATA, else ./data: the same place where runs look.

examples:
  fedwsq fetch                                      what there is, how large, on which terms
  fedwsq fetch cifar10
  fedwsq fetch cifar10 --root DIR                   then: fedwsq run cifar10-resnet8 data.root=DIR
  fedwsq fetch cifar10 --url https://my.mirror/f/   from a mirror; the published checksum still applies
"""


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "fetch",
        help="download a data set from its publisher",
        description="Download a data set from its publisher, verify it and unpack it where runs look for it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the data set (default: list what can be fetched)"
    )
    parser.add_argument(
        "--root", default="", metavar="DIR", help="the data root (default: $FEDWSQ_DATA, or ./data)"
    )
    parser.add_argument(
        "--url",
        default="",
        metavar="URL",
        help="a mirror: its folder, ending in /, or the file itself",
    )
    parser.add_argument("--force", action="store_true", help="fetch again what is already there")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Fetch it, or list what can be fetched."""
    if args.name is None:
        list_sources()
        return 0
    if args.name not in SOURCES:
        hint = did_you_mean(args.name, SOURCES)
        raise DataError(f"{args.name!r} cannot be fetched; there are {', '.join(SOURCES)}{hint}")
    source, root = SOURCES[args.name], data_root(args.root)
    folder = root / source.folder
    # Messages go to stderr, as they are; what looks like markup in a path is none.
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
    try:
        with _watcher(args.name, console) as watcher:
            fetched = fetch(source, root, url=args.url, force=args.force, watcher=watcher)
    except KeyboardInterrupt:
        kept = human_bytes(kept_bytes(source, root))
        console.print(f"stopped; {kept} are kept. Go on with: {join(_command(args))}")
        return 130
    print(
        f"{args.name} is in {folder}"
        if fetched
        else f"{args.name} is already in {folder}; --force fetches it again"
    )
    return 0


def list_sources() -> None:
    """What can be fetched, how large it is, on which terms."""
    for name, source in SOURCES.items():
        size = human_bytes(sum(file.bytes for file in source.files))
        print(f"{name:13}  {size:>8}  {source.title}, from {source.url}")
        print(f"{'':25}terms: {source.terms}\n{'':25}cite: {source.cite}")


def _command(args: argparse.Namespace) -> list[str]:
    """The command as it was given."""
    options = [
        word
        for key in ("root", "url")
        if getattr(args, key)
        for word in (f"--{key}", getattr(args, key))
    ]
    return ["fedwsq", "fetch", args.name, *options, *(["--force"] if args.force else [])]


@contextmanager
def _watcher(name: str, console: Console) -> Iterator[Watcher]:
    """A bar on a terminal, else a line for the little that there is to say."""
    if not console.is_terminal:
        yield _Lines(name, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield _Bar(name, console, bar)


class _Lines(Watcher):
    """One line when a file begins to arrive, one for each thing out of the ordinary."""

    def __init__(self, name: str, console: Console) -> None:
        self._name, self._console, self._begun = name, console, set[str]()

    def note(self, text: str) -> None:
        self._console.print(f"{self._name}: {text}")

    def received(self, file: File, have: int) -> None:
        if file.name not in self._begun:
            self._begun.add(file.name)
            self.note(f"{file.name}, {human_bytes(file.bytes)}")


class _Bar(Watcher):
    """A bar for each file."""

    def __init__(self, name: str, console: Console, bar: Progress) -> None:
        self._name, self._console, self._bar, self._tasks = name, console, bar, dict[str, TaskID]()

    def note(self, text: str) -> None:
        self._console.print(f"{self._name}: {text}")

    def received(self, file: File, have: int) -> None:
        if file.name not in self._tasks:
            self._tasks[file.name] = self._bar.add_task(file.name, total=file.bytes)
        self._bar.update(self._tasks[file.name], completed=have)
