"""In what precision forward passes run, and what `auto` means on this machine.

`docs/precision.md` says what changes with it.
"""

import os
import signal
import subprocess
import sys
from functools import cache
from typing import Literal, TypeAlias

import torch

from fedwsq.core.errors import ConfigError

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]

ISA = "ONEDNN_MAX_CPU_ISA"  # oneDNN's own setting: the best instructions that it may use
TRIAL = """
import torch
torch.set_num_threads(1)
picture = torch.ones(2, 64, 8, 8, dtype=torch.bfloat16)
network = torch.nn.Sequential(
    torch.nn.Conv2d(64, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64 * 6 * 6, 64)
)
network.to(torch.bfloat16)(picture).sum().backward()
"""
TRIAL_SECONDS = 900  # far beyond what the busiest machine takes; then it hangs, and nobody knows
# What ends a process that uses instructions which are not there, or which nobody has allowed.
ENDED_BY = (-signal.SIGILL, -signal.SIGSEGV, -signal.SIGBUS)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context in which forward passes run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Decide `auto` once, from what the hardware offers and nothing else.

    A timing would depend on the load: the same command would give other weights on a busy day.
    """
    if precision == "float32":
        return precision
    broken = device.type == "cpu" and not amx_keeps_its_word()
    if precision == "bfloat16":
        if broken:
            raise ConfigError(
                "precision = bfloat16: this machine offers AMX, but a process that multiplies "
                "bfloat16 with it is ended (some virtual machines are like that); "
                f"training.precision=float32, or {ISA}=AVX512_CORE_BF16 in the environment"
            )
        return precision
    return "bfloat16" if multiplies_bfloat16(device) and not broken else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions that multiply bfloat16.

    Without them bfloat16 is emulated, and slower than float32.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return _cpu_has("avx512_bf16") or _cpu_has("amx_tile")


def amx_keeps_its_word() -> bool:
    """Whether AMX can be used where the processor offers it; True where it is not offered.

    Whoever has told oneDNN what to use is believed.
    """
    if ISA in os.environ or not _cpu_has("amx_tile"):
        return True
    return _trial_survives()


@cache
def _trial_survives() -> bool:
    """Whether a process that multiplies bfloat16 with AMX lives.

    Only the processor may answer. A trial that was too slow, had no memory or could not be started
    says something of this moment, so it decides nothing: then somebody else must.
    """
    # An illegal instruction ends a process at once, so it has to be another one.
    command = [sys.executable, "-c", TRIAL]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TRIAL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _undecided(str(error)) from None
    if done.returncode == 0:
        return True
    if done.returncode in ENDED_BY:
        return False
    lines = done.stderr.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    raise _undecided(f"its exit code is {done.returncode}, {last}")


def _undecided(why: str) -> ConfigError:
    return ConfigError(
        f"whether this machine can multiply bfloat16 with AMX could not be tried: {why}; "
        f"training.precision=float32 asks for nothing, {ISA}=AVX512_CORE_BF16 in the environment "
        "leaves AMX alone"
    )


def _cpu_has(instructions: str) -> bool:
    """What torch says of this processor; an older torch that cannot tell counts as no."""
    probe = getattr(torch.cpu, f"_is_{instructions}_supported", None)
    return bool(probe is not None and probe())
