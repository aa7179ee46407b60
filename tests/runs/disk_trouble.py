"""`python disk_trouble.py FOLDER full|read-only WORKERS`, FOLDER a small disk that may be spoilt.

The disk fails after the first round. Prints what the command said, and the weights in the end.
"""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from fedwsq.cli import main
from fedwsq.cli.progress import _Lines
from fedwsq.runs import Run
from harness import TINY, rows

FEEDBACK = {"rounds": 3, "uplink.error_feedback": "true", "checkpoint_every": 9}


def fill(folder: Path) -> None:
    """Until there is no room for a single page more."""
    with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def make_read_only(folder: Path) -> None:
    """Only where clients write: a whole disk cannot be changed while files on it are open."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)


def trouble(folder: Path, kind: str, workers: str) -> None:
    words = [f"{key}={value}" for key, value in (TINY | FEEDBACK).items()]
    out = folder / "run"

    def spoil(lines, record):
        if record.round == 1:
            fill(folder) if kind == "full" else make_read_only(out / "clients")

    _Lines.on_round = spoil
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(["run", *words, "--out", str(out), "--workers", workers])
    assert code == 2, said.getvalue()
    # Nothing but the first round counts, and that was whole.
    assert [(row["round"], row["failed"]) for row in rows(out)] == [(1, 0)]

    if kind == "full":
        os.unlink(folder / "ballast")
    else:
        subprocess.run(["umount", str(out / "clients")], check=True)
    with Run.resume(out, workers=int(workers)) as run:
        summary = run.go()
    assert [row["failed"] for row in rows(out)] == [0, 0, 0]
    assert not list(out.rglob("*.tmp"))
    print()
    print(said.getvalue().strip())
    print(summary.weights)


if __name__ == "__main__":
    trouble(Path(sys.argv[1]), *sys.argv[2:])
