"""Runs that are kept for good: small, whole, and to be repeated.

    python benchmarks/evidence.py keep RUN [RUN ...]            a finished run each, as NAME.tar.xz
    python benchmarks/evidence.py repeat NAME data.root=DIR     the same run again, round by round

`benchmarks/evidence/NAME.tar.xz` holds a run's settings, rows, manifest, summary and receipt; not
its weights, of which the receipt has a digest for every round. Unpacked it is a run directory for
`fedwsq compare`, `table`, `report` and `verify`. `claims.py` answers the paper's claims from all of
them.
"""

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedwsq.runs.reading import Reading, read_run
from script import parser

KEPT = Path(__file__).with_name("evidence")
FILES = ("rounds.jsonl", "manifest.json", "summary.json", "receipt.json")


def keep(run: Path, kept: Path = KEPT) -> Path:
    """Pack one finished run; its settings without the places of one machine."""
    if read_run(run).state != "finished":
        sys.exit(f"{run} is not finished; go on with: fedwsq resume {run}")
    kept.mkdir(exist_ok=True)
    path = kept / f"{run.name}.tar.xz"
    config = json.loads((run / "receipt.json").read_text())["settings"]
    with tarfile.open(path, "w:xz") as archive:
        _add(archive, f"{run.name}/config.toml", config.encode())
        for name in FILES:
            _add(archive, f"{run.name}/{name}", (run / name).read_bytes())
    return path


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


def repeat(name: str, words: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
            archive.extractall(scratch, filter="data")
        receipt = str(Path(scratch, name, "receipt.json"))
        command = [sys.executable, "-m", "fedwsq", "verify", receipt, *words]
        return subprocess.run(command).returncode


def main() -> int:
    options = parser(__doc__)
    options.add_argument("what", choices=("keep", "repeat"))
    options.add_argument("words", nargs="+", metavar="RUN | NAME [WORD ...]")
    # What `fedwsq verify` takes besides, such as --rounds 3, is handed on.
    args, more = options.parse_known_args()
    if args.what == "repeat":
        return repeat(args.words[0], [*args.words[1:], *more])
    for run in args.words:
        path = keep(Path(run))
        print(f"{path} {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
