"""A long run under faults at stated rates, judged after every round.

    python benchmarks/soak.py --minutes 30 --json benchmarks/results/soak.json

A tiny model, 20 clients, 6 a round, 2 workers. Replies are dropped, delayed, repeated, damaged and
forged, workers are killed and stopped (rates in `soak_weather.py`); after some hundred rounds the
server is killed with SIGKILL or its disk filled, again and again, and goes on. After every round
the weights must be those of the accepted replies alone: bit for bit by folding only those, and
within float32 by a mean in float64. Memory, descriptors, processes and disk must not grow. Exit
code 1 if any of that does not hold. Filling a disk needs the right to mount one (Linux, `unshare`);
else that fault is left out, which the result says.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from script import Row, parser, rows
from soak_weather import REPLY_RATES, ROUND_RATES, SETTINGS, read_judged

SCRIPT = Path(__file__).with_name("soak_run.py")
LIFE_ROUNDS = (30, 400)  # before the server is killed or its disk is full
FULL_DISKS = 0.3  # of all ends of a server; the others are SIGKILL
WARM_UP_ROUNDS = 30
LONG_ENOUGH = 100  # rounds of a life from which growth can be told
MOST_GROWTH_KILOBYTES = 20.0  # a round: a run keeps its rows in memory
ORPHAN_SECONDS = 120.0  # until workers have noticed that their server is gone
MOUNT = 'mount -t tmpfs -o size=256m tmpfs "$1" && shift && exec "$@"'


class Failed(Exception):
    """What the soak is there to find."""


@dataclass
class Soak:
    """Lives of a server, one after the other, in one run directory."""

    folder: Path
    judged: Path
    can_fill: bool
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    ends: Counter[str] = field(default_factory=Counter)

    def go(self, minutes: float) -> None:
        end = time.monotonic() + 60 * minutes
        life = 0
        while time.monotonic() < end:
            life += 1
            self._live(life, end)
            judged = len(read_judged(self.judged))
            print(f"life {life} over, {judged} rounds judged, {dict(self.ends)}", flush=True)

    def _live(self, life: int, end: float) -> None:
        """Start the server, let it run for some rounds, and end it."""
        rounds = self.dice.randint(*LIFE_ROUNDS)
        fill = self.dice.random() < FULL_DISKS and self.can_fill
        with tempfile.TemporaryFile("w+") as said:
            words = [str(self.folder), str(life), str(self.judged)]
            process = subprocess.Popen([sys.executable, str(SCRIPT), *words], stderr=said)
            try:
                while time.monotonic() < end and self._judged_in(life) < rounds:
                    if process.poll() is not None:
                        said.seek(0)
                        raise Failed(f"life {life} ended by itself: {said.read()[-2000:]}")
                    time.sleep(0.5)
                workers = psutil.Process(process.pid).children()
                if time.monotonic() >= end:
                    self._interrupt(process)
                elif fill:
                    self._fill(process, said)
                else:
                    process.kill()
                    self.ends["server killed"] += 1
            finally:
                process.kill()
                process.wait()
        _require_gone(workers)

    def _judged_in(self, life: int) -> int:
        return sum(line["life"] == life for line in read_judged(self.judged))

    def _interrupt(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGINT)
        process.wait()
        self.ends["stopped at the end"] += 1

    def _fill(self, process: subprocess.Popen[bytes], said: Any) -> None:
        """Until nothing more goes onto the disk; the run must end by itself and say why."""
        ballast = self.folder / "ballast"
        try:
            with open(ballast, "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError:
            pass
        process.wait()
        said.seek(0)
        text = said.read()
        if "No space left on device" not in text:
            raise Failed(f"a full disk, and the run said: {text[-2000:]}")
        ballast.unlink()
        self.ends["disk full"] += 1


def _require_gone(workers: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(workers, timeout=ORPHAN_SECONDS)
    # A worker that was stopped cannot notice anything before it goes on.
    stopped = [worker for worker in alive if worker.status() == psutil.STATUS_STOPPED]
    for worker in alive:
        worker.kill()
    if len(stopped) < len(alive):
        raise Failed(f"{len(alive)} workers outlived their server by {ORPHAN_SECONDS:.0f} s")


def summary(lines: list[Row], rounds: list[Row], ends: Counter[str]) -> Row:
    """What happened, and what was found."""
    faults: Counter[str] = Counter()
    for line in lines:
        faults.update(line["faults"])
    counted = {
        what: sum(row[what] for row in rounds) for what in ("replied", "failed", "late", "missing")
    }
    named = {
        "asked_again": sum(len(row["asked_again"]) for row in rounds),
        "duplicates": sum(sum(row["duplicates"].values()) for row in rounds),
        "foreign": sum(sum(row["foreign"].values()) for row in rounds),
        "clipped": sum(row["clipped"] for row in rounds),
        "empty_rounds": sum(row["replied"] == 0 for row in rounds),
    }
    tail = lines[WARM_UP_ROUNDS:]
    half = len(tail) // 2
    return {
        "rounds_judged": len(lines),
        "rounds_in_rows": len(rounds),
        "worst_distance_from_float64_mean": max(line["off"] for line in lines),
        "faults": dict(faults),
        "ends_of_the_server": dict(ends),
        "rows_say": counted | named,
        "server_kilobytes_a_round_by_life": _growth(lines, "server_megabytes"),
        "worker_kilobytes_a_round_by_life": _growth(lines, "worker_megabytes"),
        "descriptors": _range(lines, "descriptors"),
        "processes": _range(lines, "processes"),
        "client_megabytes_first_half": _most(tail[:half], "client_bytes") / 1e6,
        "client_megabytes_second_half": _most(tail[half:], "client_bytes") / 1e6,
        "other_files": _range(lines, "other_files"),
    }


def _most(lines: list[Row], what: str) -> float:
    return max((float(line[what]) for line in lines), default=0.0)


def _range(lines: list[Row], what: str) -> list[float]:
    return [min(line[what] for line in lines), max(line[what] for line in lines)]


def _growth(lines: list[Row], what: str) -> list[float]:
    """Kilobytes a round over every life that was long enough, its first rounds left out."""
    found = []
    for life in sorted({line["life"] for line in lines}):
        values = [line[what] for line in lines if line["life"] == life][WARM_UP_ROUNDS:]
        if len(values) >= LONG_ENOUGH:
            slope = np.polyfit(np.arange(len(values)), values, 1)[0]
            found.append(round(1000 * float(slope), 2))
    return found


def complaints(found: Row, rounds: list[Row]) -> list[str]:
    """What does not hold of a soak whose rounds were all found right."""
    wrong = []
    numbers = [row["round"] for row in rounds]
    if numbers != list(range(1, len(rounds) + 1)):
        wrong.append("rows are missing or twice there")
    growth = found["server_kilobytes_a_round_by_life"]
    if growth and float(np.median(growth)) > MOST_GROWTH_KILOBYTES:
        wrong.append(f"the server grows by {np.median(growth):.1f} kB a round")
    if found["descriptors"][1] - found["descriptors"][0] > 4:
        wrong.append(f"open files went from {found['descriptors'][0]} to {found['descriptors'][1]}")
    first = found["client_megabytes_first_half"]
    if found["client_megabytes_second_half"] > 1.2 * first:
        wrong.append("what clients keep on disk grows")
    return wrong


def soak(folder: Path, judged: Path, args: argparse.Namespace) -> int:
    soaking = Soak(folder, judged, can_fill=bool(args.inside))
    began = time.time()
    wrong = []
    try:
        soaking.go(args.minutes)
    except Failed as failed:
        wrong.append(str(failed))
    lines = read_judged(judged)
    rounds = rows(folder / "run")
    found = summary(lines, rounds, soaking.ends)
    wrong += complaints(found, rounds)
    result = {
        "minutes": (time.time() - began) / 60,
        "verdict": wrong or "all rounds right, nothing grows",
        **found,
        "rates": {"of a reply": REPLY_RATES, "of a round": ROUND_RATES},
        "rounds_of_a_life": LIFE_ROUNDS,
        "disk_filled_for_real": bool(args.inside),
        "settings": SETTINGS,
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 1 if wrong else 0


def on_a_small_disk(folder: str) -> int | None:
    """The same command with a disk of its own under `folder`; None where that cannot be had."""
    try:
        probe = subprocess.run(["unshare", "-rm", "sh", "-c", MOUNT, "sh", folder, "true"])
    except FileNotFoundError:
        return None
    if probe.returncode:
        return None
    command = [sys.executable, *sys.argv, "--inside", folder]
    return subprocess.run(["unshare", "-rm", "sh", "-c", MOUNT, "sh", folder, *command]).returncode


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--json", type=Path, metavar="FILE")
    options.add_argument("--inside", metavar="DISK", help=argparse.SUPPRESS)
    args = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        if args.inside:
            return soak(Path(args.inside), Path(scratch, "judged.jsonl"), args)
        disk = Path(scratch, "disk")
        disk.mkdir()
        code = on_a_small_disk(str(disk))
        if code is not None:
            return code
        return soak(disk, Path(scratch, "judged.jsonl"), args)


if __name__ == "__main__":
    # Workers and the run itself find their code as this script does.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), *filter(None, sys.path)])
    sys.exit(main())
