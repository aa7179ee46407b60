"""In what precision forward passes run, and whether bfloat16 pays on this machine."""

import functools
import math
import time
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F

from fedwsq.core.threads import one_thread

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context in which forward passes run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Decide `auto` once: bfloat16 where the hardware has instructions for it and they pay."""
    if precision != "auto":
        return precision
    mkldnn = torch.backends.mkldnn
    pays = False
    if device.type == "cuda":
        pays = torch.cuda.is_bf16_supported()
    elif device.type == "cpu" and mkldnn.is_available():  # type: ignore[no-untyped-call]
        # A processor may have the instructions without being any faster for them.
        capable = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        pays = capable and bfloat16_speedup() > 1.1
    return "bfloat16" if pays else "float32"


@functools.cache
def bfloat16_speedup(repeats: int = 12) -> float:
    """How many times faster one thread trains a small convolution in bfloat16.

    About 2 with real instructions. Both are timed in turn and the best of several counts:
    another process can only make a step look slower than it is.
    """
    x = torch.ones(8, 64, 16, 16).contiguous(memory_format=torch.channels_last)
    weight = torch.ones(64, 64, 3, 3, requires_grad=True)
    best: dict[Precision, float] = {"float32": math.inf, "bfloat16": math.inf}
    with one_thread():
        for _ in range(repeats):
            for precision in best:
                began = time.perf_counter()
                with autocast(x.device, precision):
                    y = F.conv2d(F.conv2d(x, weight, padding=1), weight, padding=1)
                torch.autograd.backward(y.float().sum())
                best[precision] = min(best[precision], time.perf_counter() - began)
    return best["float32"] / best["bfloat16"]
