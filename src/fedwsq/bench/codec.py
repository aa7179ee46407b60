"""How fast updates are coded and folded on one core, against memcpy and against plain torch."""

import functools
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedwsq.bench.figure import Figure, figure, in_turn, ratios
from fedwsq.codecs import Danuq
from fedwsq.codecs.grid import quantize, tables
from fedwsq.codecs.groups import make_groups
from fedwsq.codecs.levels import levels
from fedwsq.core.threads import one_thread

NUMEL = 11_157_504  # the coded weights of a ResNet-18
TIMES = (
    10  # what takes milliseconds is done so often, so that a busy machine's time slices even out
)
ENCODE_MUST = {4: 0.22, 2: 0.4, 1: 0.4}  # of memcpy
FOLD_MUST = 0.7
PLAIN_BITS = 4


def plain_encode(x: Tensor, scale: Tensor, edges: Tensor) -> tuple[bytes, float]:
    """A 4-bit code as one would write it in torch."""
    codes = torch.bucketize(x / scale, edges).to(torch.uint8)
    return (codes[0::2] | codes[1::2] << 4).numpy().tobytes(), x.std().item()


def plain_accumulate(code: bytes, scale: Tensor, q: Tensor, out: Tensor, weight: float) -> None:
    """The same way back, into a running sum."""
    packed = torch.frombuffer(bytearray(code), dtype=torch.uint8)
    codes = torch.stack((packed & 15, packed >> 4), 1).view(-1)
    out += q[codes.long()] * scale * weight


def measure() -> list[Figure]:
    """Encode and accumulate at 4, 2 and 1 bits."""
    with one_thread():
        return _measure()


def _measure() -> list[Figure]:
    codec, generator = Danuq(), torch.Generator().manual_seed(0)
    x, out = torch.randn(NUMEL, generator=generator) * 1e-3, torch.zeros(NUMEL)
    shared, groups, copy = (
        torch.tensor([1.1e-3]),
        make_groups(NUMEL, 1, "tensor", 64),
        np.empty(NUMEL, np.float32),
    )
    values, scales = x.numpy(), shared.numpy()
    q, edges = (torch.from_numpy(table) for table in tables(levels(PLAIN_BITS)))
    packets = {bits: codec.encode(x, shared, bits, 0) for bits in ENCODE_MUST}
    once: dict[str, Callable[[], object]] = {
        "plain encode": lambda: plain_encode(x, shared, edges),
        "plain accumulate": lambda: plain_accumulate(packets[PLAIN_BITS].code, shared, q, out, 0.1),
    }
    often: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(copy, values)}
    for bits in ENCODE_MUST:
        between = tables(levels(bits))[1]
        often[f"encode {bits}"] = functools.partial(codec.encode, x, shared, bits, 0)
        often[f"quantize {bits}"] = functools.partial(
            quantize, values, groups, scales, between, bits
        )
        often[f"accumulate {bits}"] = functools.partial(
            codec.accumulate, packets[bits], shared, 0, out, 0.1
        )
    assert plain_encode(x, shared, edges)[0] == packets[PLAIN_BITS].code
    measured = in_turn(
        [*once.values(), *(functools.partial(_repeat, work) for work in often.values())]
    )
    seconds = dict(zip([*once, *often], measured, strict=True))
    seconds |= {name: [each / TIMES for each in seconds[name]] for name in often}
    return _figures(seconds)


def _repeat(work: Callable[[], object]) -> None:
    for _ in range(TIMES):
        work()


def _figures(seconds: dict[str, list[float]]) -> list[Figure]:
    """Ratios to memcpy and to plain torch; the notes say GB of float32 a second."""
    memcpy = seconds["memcpy"]

    def against(other: str, work: str, name: str, must: float | None = None) -> Figure:
        return figure(
            name, ratios(seconds[other], seconds[work]), must=must, note=_speed(seconds[work])
        )

    found = [figure("memcpy", [4 * NUMEL / 1e9 / each for each in memcpy], unit="GB/s")]
    for bits, must in ENCODE_MUST.items():
        found.append(against("memcpy", f"encode {bits}", f"encode {bits}-bit / memcpy", must))
        found.append(
            against("memcpy", f"quantize {bits}", f"encode {bits}-bit without the std / memcpy")
        )
    found.append(
        against(
            "plain encode", f"encode {PLAIN_BITS}", f"encode {PLAIN_BITS}-bit / plain torch", 10
        )
    )
    for bits in ENCODE_MUST:
        found.append(
            against(
                "memcpy", f"accumulate {bits}", f"decode and add {bits}-bit / memcpy", FOLD_MUST
            )
        )
    work = f"accumulate {PLAIN_BITS}"
    found.append(
        against("plain accumulate", work, f"decode and add {PLAIN_BITS}-bit / plain torch", 15)
    )
    return found


def _speed(seconds: Sequence[float]) -> str:
    return f"{4 * NUMEL / 1e9 / statistics.median(seconds):.3g} GB/s"
