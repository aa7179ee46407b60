"""Runs in processes of their own, watched from outside: their memory, and when rows appear."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedwsq.core.errors import RunError
from fedwsq.federation.record import RoundRecord

PROC = Path("/proc")
PAUSE_SECONDS = 0.1


class Watched(NamedTuple):
    """A run that has ended."""

    peak_megabytes: float  # of the run and all its workers together, shared pages counted once
    first_row_seconds: float  # from the start of the process to the end of its first round
    records: list[RoundRecord]


def can_watch() -> bool:
    """Whether the system tells memory with shared pages divided among those who share them."""
    return (PROC / "self" / "smaps_rollup").exists()


def watch(words: Sequence[str]) -> Watched:
    """`fedwsq run` with these words in a temporary directory, to its end."""
    if not can_watch():
        raise RunError(
            "memory is read from /proc/PID/smaps_rollup, which this system does not have; use Linux"
        )
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "run", "rounds.jsonl")
        errors = Path(folder, "errors")
        began = time.perf_counter()
        with open(errors, "w") as said:
            command = [sys.executable, "-m", "fedwsq.cli", "run", *words, "--out", str(rows.parent)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)

        first = 0.0  # until there is a row
        peak = 0.0
        try:
            while process.poll() is None:
                family = [process.pid, *descendants(process.pid)]
                peak = max(peak, sum(map(pss_megabytes, family)))
                if not first and rows.exists() and rows.stat().st_size:
                    first = time.perf_counter() - began
                time.sleep(PAUSE_SECONDS)
        finally:
            # Interrupted, it must not outlive the measurement.
            process.kill()
            process.wait()

        if process.returncode:
            why = errors.read_text().strip()[-500:]
            raise RunError(f"a run to measure ended with {process.returncode}: {why}")
        records = [RoundRecord.parse(line) for line in rows.read_text().splitlines()]
        # A quick run may have ended between two looks.
        return Watched(peak, first or time.perf_counter() - began, records)


def pss_megabytes(pid: int) -> float:
    """Memory of a process, each shared page divided by those who share it; 0 once it is gone."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def descendants(pid: int) -> list[int]:
    """The children of a process, their children and so on."""
    parents: dict[int, int] = {}
    for path in PROC.glob("[0-9]*/stat"):
        # pid (name, which may have spaces and brackets in it) state parent ...
        try:
            after_name = path.read_text().rpartition(")")[2]
            parents[int(path.parent.name)] = int(after_name.split()[1])
        except (OSError, IndexError):
            continue  # gone

    found: list[int] = []
    last = [pid]
    while last:
        last = [child for child, parent in parents.items() if parent in last]
        found += last
    return found
