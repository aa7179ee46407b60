"""One config, started again and again under a load that comes and goes: one answer, or it fails.

    python benchmarks/starts.py [OUT] [--starts 20] [--at-once 1] [--load 4]
                                [--settings "rounds=2 ..."] [--write FILE.json]

Every start is a process of its own, as a user would type it: `fedwsq run`, with precision left to
`auto`. Meanwhile some processes, by default two for each core, count numbers for some seconds at a
time. What each run says of its precision and of its weights must be the same every time; the
seconds that they took say how different the machine was.
"""

import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from script import keep, parser

SETTINGS = "rounds=2 training.epochs=1 training.batches_per_epoch=3 --workers 1"
BURST_SECONDS = (0.5, 6.0)  # of work, and of rest


def busy(seed: int) -> None:
    """One process of the load: works for a while, rests for a while, until it is ended."""
    dice = random.Random(seed)
    while True:
        until = time.monotonic() + dice.uniform(*BURST_SECONDS)
        while time.monotonic() < until:
            sum(range(100_000))
        time.sleep(dice.uniform(*BURST_SECONDS))


@contextmanager
def load_that_comes_and_goes(count: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=busy, args=(n,), daemon=True) for n in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def start(folder: Path, settings: str) -> tuple[dict[str, Any], float]:
    """What a run says of itself at its end, and how long it all took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "fedwsq", "run", *settings.split(), "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found, seconds


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("out", nargs="?", type=Path)
    arguments.add_argument("--starts", type=int, default=20)
    arguments.add_argument("--at-once", type=int, default=1)
    arguments.add_argument("--load", type=int, default=2 * (os.cpu_count() or 1))
    arguments.add_argument("--settings", default=SETTINGS)
    arguments.add_argument("--write", type=Path)
    args = arguments.parse_args()

    precisions: Counter[str] = Counter()
    digests: Counter[str] = Counter()
    taken = []
    with (
        tempfile.TemporaryDirectory(prefix="starts-") as scratch,
        load_that_comes_and_goes(args.load),
        ThreadPoolExecutor(args.at_once) as starters,
    ):
        out = args.out or Path(scratch)
        folders = [out / str(number) for number in range(1, args.starts + 1)]
        for summary, seconds in starters.map(lambda folder: start(folder, args.settings), folders):
            precisions[summary["precision"]] += 1
            digests[summary["weights"]] += 1
            taken.append(seconds)
            said = f"{summary['precision']}, weights {summary['weights']}, {seconds:.1f} s"
            print(f"start {len(taken)}: {said}", flush=True)

    found = {
        "settings": args.settings,
        "starts": args.starts,
        "precision": dict(precisions),
        "weights": dict(digests),
        "seconds": [round(min(taken), 1), round(max(taken), 1)],
    }
    keep(found, "starts", args.write)
    if len(precisions) > 1 or len(digests) > 1:
        sys.exit("the same command gave different answers")


if __name__ == "__main__":
    main()
