"""What a benchmark reports: figures as ratios within one run, with their spread over repeats."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fedwsq.core.version import VERSION

REPEATS = 5
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Figure:
    """One measured number: a median, and the bar that it must reach, if there is one."""

    name: str  # "encode 4-bit / memcpy"
    value: float
    low: float  # over the repeats
    high: float
    unit: str = "x"
    must: float | None = None
    better: Literal["higher", "lower"] = "higher"
    note: str = ""  # absolute numbers, or what limits it

    @property
    def reached(self) -> bool | None:
        """Whether the bar was met; None without one."""
        if self.must is None:
            return None
        if self.better == "higher":
            return self.value >= self.must
        return self.value <= self.must

    @property
    def bar(self) -> str:
        """`>= 0.22 x`; empty without one."""
        if self.must is None:
            return ""
        sign = ">=" if self.better == "higher" else "<="
        return f"{sign} {self.must:g} {self.unit}"


def figure(name: str, values: Sequence[float], **details: Any) -> Figure:
    """The median of some repeats, with the ends."""
    return Figure(name, statistics.median(values), min(values), max(values), **details)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes once."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turn(works: Sequence[Callable[[], object]], repeats: int = REPEATS) -> list[list[float]]:
    """The seconds of each piece of work, in turn again and again.

    A machine that is busy for a while so slows all of them alike.
    """
    for work in works:
        work()  # warm
    rounds = [[seconds(work) for work in works] for _ in range(repeats)]
    return [list(times) for times in zip(*rounds, strict=True)]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """One ratio for each repeat."""
    return [a / b for a, b in zip(over, under, strict=True)]


def machine() -> dict[str, Any]:
    """What the figures were measured on, as far as the system says."""
    affinity = hasattr(os, "sched_getaffinity")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if affinity else os.cpu_count(),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedwsq": VERSION,
    }


def _cpu() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def as_json(about: dict[str, Any], figures: Sequence[Figure]) -> bytes:
    """A file of figures, with the machine they were measured on."""
    plain = [{**asdict(each), "reached": each.reached} for each in figures]
    return (json.dumps({"machine": about, "figures": plain}, indent=2) + "\n").encode()
