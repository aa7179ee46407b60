"""So many damaged inputs of a kind, or as many as some seconds allow, in a process of their own."""

import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzz_damage import damaged
from fuzz_targets import TARGETS, corpus, outcome

MEMORY_BYTES = 3 << 30  # of addresses beyond what is there at the start
HANG_SECONDS = 300  # on a busy machine; one input takes a millisecond


@dataclass
class Campaign:
    """What came of it."""

    kind: str
    inputs: int = 0
    refused: int = 0
    read: int = 0
    findings: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    slowest_seconds: float = 0.0
    start_bytes: int = 0  # resident, before the first input
    peak_bytes: int = 0


def inputs(kind: str, seed: int) -> Iterator[bytes]:
    """Damaged samples without end, the same for the same seed; half of them sealed again."""
    target = TARGETS[kind]
    honest = corpus(kind)
    inner = [target.opened(data) for data in honest]
    rng = random.Random(f"{kind} {seed}")
    while True:
        if rng.random() < 0.3:
            yield damaged(rng, rng.choice(honest), honest, target.tokens)
        else:
            yield target.sealed(damaged(rng, rng.choice(inner), inner, target.tokens))


def run(
    kind: str, seed: int, count: int = 0, seconds: float = 0.0, keep: Path | None = None
) -> Campaign:
    """`keep` is a folder for what was found."""
    for data in corpus(kind):
        outcome(kind, data)  # everything is imported and compiled before anything is measured
    found = Campaign(kind, start_bytes=peak())
    began = time.perf_counter()
    cpu = time.process_time()
    for data in inputs(kind, seed):
        spent = time.perf_counter() - began
        if (count and found.inputs == count) or (seconds and spent > seconds):
            break
        signal.alarm(HANG_SECONDS)
        start = time.process_time()
        result = judge(kind, data, keep)
        found.slowest_seconds = max(found.slowest_seconds, time.process_time() - start)
        found.inputs += 1
        setattr(found, result, getattr(found, result) + 1)
    signal.alarm(0)
    found.seconds = time.perf_counter() - began
    found.cpu_seconds = time.process_time() - cpu
    found.peak_bytes = peak()
    return found


def judge(kind: str, data: bytes, keep: Path | None) -> str:
    try:
        return outcome(kind, data)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename}:{where.lineno}"
        print(f"{kind}: {type(error).__name__} at {place}: {str(error)[:200]}", file=sys.stderr)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{kind}-{type(error).__name__}-{where.lineno}").write_bytes(data)
        return "findings"


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bound_memory() -> None:
    """What asks for gigabytes is a MemoryError here, and so a finding."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))


if __name__ == "__main__":
    import json

    kind, seed, count, seconds, keep = sys.argv[1:]
    bound_memory()
    found = run(kind, int(seed), int(count), float(seconds), Path(keep) if keep else None)
    print(json.dumps(asdict(found)))
