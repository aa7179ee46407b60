"""In what precision forward passes run, and what `auto` means on this machine.

`docs/precision.md` says what changes with it.
"""

from typing import Literal, TypeAlias

import torch

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context in which forward passes run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Decide `auto` once, from what the hardware offers and nothing else.

    A timing would depend on the load: the same command would give other weights on a busy day.
    """
    if precision != "auto":
        return precision
    return "bfloat16" if multiplies_bfloat16(device) else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions that multiply bfloat16.

    Without them bfloat16 is emulated, and slower than float32.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return _cpu_has("avx512_bf16") or _cpu_has("amx_tile")


def _cpu_has(instructions: str) -> bool:
    """What torch says of this processor; an older torch that cannot tell counts as no."""
    probe = getattr(torch.cpu, f"_is_{instructions}_supported", None)
    return bool(probe is not None and probe())
