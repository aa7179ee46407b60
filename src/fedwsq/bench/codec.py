"""How fast updates are coded and folded on one core, against memcpy and against plain torch."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwsq.bench.figure import Figure, figure, in_turn, ratios
from fedwsq.codecs import Danuq, Ecq
from fedwsq.codecs.coding import quantize, tables
from fedwsq.codecs.kernels import Scales
from fedwsq.codecs.levels import levels
from fedwsq.core.threads import one_thread

NUMEL = 11_157_504  # the coded weights of a ResNet-18
TIMES = 10  # for what takes milliseconds


class Bar(NamedTuple):
    """How many times as fast as its base a piece of work must be."""

    work: str
    base: Literal["memcpy", "plain torch"]
    must: float | None = None


BARS = (
    Bar("encode 4-bit", "memcpy", 0.22),
    Bar("encode 4-bit without the std", "memcpy"),
    Bar("encode 2-bit", "memcpy", 0.4),
    Bar("encode 2-bit without the std", "memcpy"),
    Bar("encode 1-bit", "memcpy", 0.4),
    Bar("encode 1-bit without the std", "memcpy"),
    Bar("encode 4-bit", "plain torch", 10),
    Bar("decode and add 4-bit", "memcpy", 0.7),
    Bar("decode and add 2-bit", "memcpy", 0.7),
    Bar("decode and add 1-bit", "memcpy", 0.7),
    Bar("decode and add 4-bit", "plain torch", 15),
    # 0.3 GB/s where memcpy has 12.6, as it had where the others were set.
    Bar("ecq encode 0.5-bit", "memcpy"),
    Bar("ecq encode 1-bit", "memcpy", 0.024),
    Bar("ecq encode 4-bit", "memcpy"),
    Bar("ecq decode and add 0.5-bit", "memcpy"),
    Bar("ecq decode and add 1-bit", "memcpy", 0.024),
    Bar("ecq decode and add 4-bit", "memcpy"),
)
ECQ_RATES: tuple[float, ...] = (0.5, 1, 4)


@dataclass(frozen=True)
class Work:
    """Something to time, so often in a row that a busy machine's time slices even out."""

    do: Callable[[], object]
    times: int = 1

    def __call__(self) -> None:
        for _ in range(self.times):
            self.do()


def plain_encode(x: Tensor, scale: Tensor, edges: Tensor) -> tuple[bytes, float]:
    """A 4-bit code as one would write it in torch."""
    codes = torch.bucketize(x / scale, edges).to(torch.uint8)
    packed = codes[0::2] | codes[1::2] << 4
    return packed.numpy().tobytes(), x.std().item()


def plain_accumulate(code: bytes, scale: Tensor, q: Tensor, out: Tensor, weight: float) -> None:
    """The same way back, into a running sum."""
    packed = torch.frombuffer(bytearray(code), dtype=torch.uint8)
    codes = torch.stack((packed & 15, packed >> 4), 1).view(-1)
    out += q[codes.long()] * scale * weight


def measure() -> list[Figure]:
    """Encode and accumulate at 4, 2 and 1 bits; with an entropy coder at 4, 1 and half a bit."""
    with one_thread():
        works = _works()
        measured = in_turn(list(works.values()))
    seconds: dict[str, list[float]] = {}
    for (name, work), each in zip(works.items(), measured, strict=True):
        seconds[name] = [total / work.times for total in each]

    memcpy = [_speed(each) for each in seconds["memcpy"]]
    found = [figure("memcpy", memcpy, unit="GB/s")]
    for bar in BARS:
        mine = seconds[bar.work]
        base = seconds["memcpy" if bar.base == "memcpy" else f"plain {bar.work}"]
        note = f"{_speed(statistics.median(mine)):.3g} GB/s"
        name = f"{bar.work} / {bar.base}"
        found.append(figure(name, ratios(base, mine), must=bar.must, note=note))
    return found


def _works() -> dict[str, Work]:
    """All that is timed, on one update as large as a ResNet-18's."""
    codec = Danuq()
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0)) * 1e-3
    out = torch.zeros(NUMEL)
    shared = torch.tensor([1.1e-3])
    values = x.numpy()
    scales = Scales(shared.numpy(), NUMEL)
    works = {"memcpy": Work(partial(np.copyto, np.empty_like(values), values), TIMES)}
    for bits in (4, 2, 1):
        packet = codec.encode(x, shared, bits, 0)
        between = tables(levels(bits)).edges
        encode = partial(codec.encode, x, shared, bits, 0)
        without_std = partial(quantize, values, scales, between, bits)
        accumulate = partial(codec.accumulate, packet, shared, 0, out, 0.1)
        works[f"encode {bits}-bit"] = Work(encode, TIMES)
        works[f"encode {bits}-bit without the std"] = Work(without_std, TIMES)
        works[f"decode and add {bits}-bit"] = Work(accumulate, TIMES)

    none = torch.empty(0)
    for rate in ECQ_RATES:
        packet = Ecq().encode(x, none, rate, 0)
        works[f"ecq encode {rate}-bit"] = Work(partial(Ecq().encode, x, none, rate, 0))
        accumulate = partial(Ecq().accumulate, packet, none, 0, out, 0.1)
        works[f"ecq decode and add {rate}-bit"] = Work(accumulate)

    q, edges = (torch.from_numpy(table) for table in tables(levels(4)))
    code = plain_encode(x, shared, edges)[0]
    # The same work, or there is nothing to compare.
    assert code == codec.encode(x, shared, 4, 0).code
    works["plain encode 4-bit"] = Work(partial(plain_encode, x, shared, edges))
    accumulate = partial(plain_accumulate, code, shared, q, out, 0.1)
    works["plain decode and add 4-bit"] = Work(accumulate)
    return works


def _speed(seconds: float) -> float:
    """GB of float32 a second."""
    return 4 * NUMEL / 1e9 / seconds
