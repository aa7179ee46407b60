"""What a reader needs to judge whether another machine would give the same weights."""

import functools
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from fedwsq.core.checked import fits
from fedwsq.core.errors import RunError
from fedwsq.core.text import read_text
from fedwsq.core.version import VERSION
from fedwsq.models import weights_digest
from fedwsq.plan import Plan
from fedwsq.runs.backend import Backend, Machine

FORMAT = 2
MAX_BYTES = 2**20
Value: TypeAlias = str | int | float | None
Manifest: TypeAlias = dict[str, Any]


def make_manifest(plan: Plan, config: str, backend: Backend, machine: Machine) -> Manifest:
    """`config` is the digest of the plan as it was given."""
    return {
        "format": FORMAT,
        "fedwsq": VERSION,
        "commit": source_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "device": str(machine.device),
        "workers": machine.workers,
        "precision": plan.training.precision,
        "seed": plan.seed,
        "config": config,
        "init": init_digest(plan),
        "data": backend.data_digest,
        "trace": plan.channels.digest(),
        "frozen": backend.charter.schema.frozen.hex(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def init_digest(plan: Plan) -> str:
    """A hash of the file that the weights start from; "" where there is none."""
    return weights_digest(plan.model.init) if plan.model.init else ""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run directory of this format."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(read_text(path, MAX_BYTES))
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run directory: it has no manifest.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if not fits(dict[str, Value], manifest):
        raise RunError(f"{path} cannot be read: it must be a table of words and numbers")
    found = manifest.get("format")
    if found != FORMAT:
        raise RunError(
            f"{folder} has run format {found}, this build (fedwsq {VERSION}) reads {FORMAT}"
        )
    return dict(manifest)


def require_the_same(before: Mapping[str, Any], plan: Plan, backend: Backend) -> None:
    """Refuse to go on with other data, another file or other frozen weights than at the start.

    Files come before weights: a model cannot even be built from a file that is not what it was.
    """
    if backend.data_digest != before.get("data"):
        raise RunError(
            "the data is not what the run began with: its training labels, or who holds which "
            "example, have changed; put the files and the settings of where they are back, or "
            "start another run"
        )
    if plan.channels.digest() != before.get("trace"):
        trace = getattr(plan.channels, "path", "")
        raise RunError(
            f"trace {trace} was changed since the run began; put it back or start another run"
        )
    if init_digest(plan) != before.get("init"):
        raise RunError(
            f"model.init = {plan.model.init} was changed since the run began; put it back or "
            "start another run"
        )
    if backend.charter.schema.frozen.hex() != before.get("frozen"):
        raise RunError(
            "the frozen weights are not those that the run began with: the seed gives others in "
            "this version of torch or of the model; go back to that version, or start another run"
        )


def machine_changes(before: Mapping[str, Any], now: Manifest) -> str | None:
    """What makes bit-for-bit equality with an undisturbed run unlikely."""
    said = [
        f"{key} was {before.get(key)} and is {now[key]}"
        for key in ("fedwsq", "commit", "torch", "numpy", "cpu", "device")
        if before.get(key) != now[key]
    ]
    if not said:
        return None
    return (
        f"the machine has changed ({', '.join(said)}): weights may differ in the last bits from "
        "an undisturbed run"
    )


@functools.cache
def source_commit() -> str:
    """The commit of the checkout that runs; "" for an installed package."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return ""
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()
