"""Runs that are kept for good: small, whole, and to be repeated.

    python benchmarks/evidence.py keep RUN [RUN ...]            finished runs, NAME.tar.xz each
    python benchmarks/evidence.py list                          what is kept, and how long it is
    python benchmarks/evidence.py repeat NAME data.root=DIR     the same run again, round by round

`keep runs/lean/* --prefix cifar10_lean_` takes a sweep as far as it is finished. `repeat NAME
--rounds 3` repeats the first three rounds; what follows is handed to `fedwsq verify`.

`benchmarks/evidence/NAME.tar.xz` holds a run's settings, rows, manifest, summary and receipt; not
its weights, of which the receipt has a digest for every round. Unpacked it is a run directory for
`fedwsq compare`, `table`, `report` and `verify`. `claims.py` answers the paper's claims from all of
them.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedwsq.core.errors import RunError, did_you_mean
from fedwsq.runs.reading import Reading, read_run
from fedwsq.runs.receipt import Receipt, read_receipt
from script import parser

KEPT = Path(__file__).with_name("evidence")
FILES = ("rounds.jsonl", "manifest.json", "summary.json", "receipt.json")


def keep(run: Path, kept: Path = KEPT, prefix: str = "") -> Path:
    """Pack one finished run; its settings without the places of one machine."""
    receipt = read_receipt(run)
    name = f"{prefix}{run.name}"
    path = kept / f"{name}.tar.xz"
    if path.exists() and receipt_of(path).settings != receipt.settings:
        raise RunError(f"{path} is another run's; give this one a --prefix")
    kept.mkdir(exist_ok=True)
    with tarfile.open(path, "w:xz") as archive:
        _add(archive, f"{name}/config.toml", receipt.settings.encode())
        for file in FILES:
            _add(archive, f"{name}/{file}", (run / file).read_bytes())
    return path


def keep_finished(runs: list[Path], kept: Path = KEPT, prefix: str = "") -> int:
    """Those of the runs that are finished; the others are named."""
    left_out = 0
    for run in runs:
        state = read_run(run).state if run.is_dir() else "not there"
        if state != "finished":
            print(f"left out: {run} is {state}", file=sys.stderr)
            left_out += 1
            continue
        path = keep(run, kept, prefix)
        print(f"{path} {path.stat().st_size:,} bytes")
    return int(left_out == len(runs))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """With no date and no owner: the same run gives the same file."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


@contextmanager
def unpacked(kept: Path = KEPT) -> Iterator[list[Reading]]:
    """All that is kept, as run directories that are there for a while."""
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        for path in sorted(kept.glob("*.tar.xz")):
            with tarfile.open(path) as archive:
                archive.extractall(scratch, filter="data")
        yield [read_run(folder) for folder in sorted(Path(scratch).iterdir())]


def receipt_of(path: Path) -> Receipt:
    """The receipt inside a kept run."""
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        return read_receipt(_unpack(path, scratch))


def _unpack(path: Path, scratch: str) -> Path:
    with tarfile.open(path) as archive:
        archive.extractall(scratch, filter="data")
    (folder,) = Path(scratch).iterdir()
    return folder


def repeat(name: str, words: list[str], kept: Path = KEPT) -> int:
    """Run it again, and hold it against its receipt and its rows; 0 if all is the same."""
    path = kept / f"{name.removesuffix('.tar.xz')}.tar.xz"
    if not path.exists():
        known = [each.name.removesuffix(".tar.xz") for each in sorted(kept.glob("*.tar.xz"))]
        raise RunError(f"no run {name} is kept in {kept}{did_you_mean(name, known)}")
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        # The directory and not its receipt alone: what its rows measured is compared too.
        command = [sys.executable, "-m", "fedwsq", "verify", str(_unpack(path, scratch)), *words]
        return subprocess.run(command).returncode


def show() -> int:
    with unpacked() as runs:
        for run in runs:
            last = run.rows[-1]
            print(f"{run.name}: {last.round} rounds, weights {last.weights}, {run.facts.cpu}")
    return 0


def main() -> int:
    options = parser(__doc__)
    options.add_argument("what", choices=("keep", "list", "repeat"))
    options.add_argument("words", nargs="*", metavar="RUN | NAME [WORD ...]")
    options.add_argument("--prefix", default="", help="what a kept run's name starts with")
    # What `fedwsq verify` takes besides, such as --rounds 3, is handed on.
    args, more = options.parse_known_args()
    if args.what == "list":
        return show()
    if not args.words:
        options.error(f"{args.what} what? Give it a name or a directory")
    try:
        if args.what == "repeat":
            return repeat(args.words[0], [*args.words[1:], *more])
        if more:
            options.error(f"keep does not know {more[0]}")
        return keep_finished([Path(run) for run in args.words], prefix=args.prefix)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
