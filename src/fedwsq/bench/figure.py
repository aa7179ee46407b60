"""What a benchmark reports: figures as ratios within one run, with their spread over repeats."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import fedwsq

REPEATS = 5


@dataclass(frozen=True)
class Figure:
    """One measured number. `value` is a median; `must` is what it has to reach, above or below as `better` says."""

    name: str  # "encode 4-bit / memcpy"
    value: float
    low: float  # over the repeats
    high: float
    unit: str = "x"
    must: float | None = None
    better: str = "higher"  # or "lower"
    note: str = ""  # absolute numbers, or what limits it

    @property
    def reached(self) -> bool | None:
        """Whether the bar was met; None without one."""
        if self.must is None:
            return None
        return self.value >= self.must if self.better == "higher" else self.value <= self.must


def figure(name: str, values: Sequence[float], **details: Any) -> Figure:
    """The median of some repeats, with the ends."""
    return Figure(name, statistics.median(values), min(values), max(values), **details)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes once."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turn(works: Sequence[Callable[[], object]], repeats: int = REPEATS) -> list[list[float]]:
    """The seconds of each piece of work, in turn again and again, so that a busy machine slows all of them alike."""
    for work in works:
        work()  # warm
    rounds = [[seconds(work) for work in works] for _ in range(repeats)]
    return [list(times) for times in zip(*rounds, strict=True)]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """One ratio for each repeat."""
    return [a / b for a, b in zip(over, under, strict=True)]


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            model = next(
                (line.partition(":")[2].strip() for line in file if line.startswith("model name")),
                model,
            )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedwsq": fedwsq.__version__,
    }


def as_json(about: dict[str, Any], figures: Sequence[Figure]) -> bytes:
    """A file of figures, with the machine they were measured on."""
    plain = [{**asdict(each), "reached": each.reached} for each in figures]
    return (json.dumps({"machine": about, "figures": plain}, indent=2) + "\n").encode()
