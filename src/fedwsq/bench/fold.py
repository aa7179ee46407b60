"""How fast a server folds replies on one core, and that its memory does not grow with them."""

import os
from pathlib import Path
from statistics import median

import torch

from fedwsq.bench.figure import REPEATS, Figure, figure, seconds
from fedwsq.codecs import Danuq, Fixed
from fedwsq.core.seeds import derive
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import shapes, zeros_like
from fedwsq.core.types import Key, Params
from fedwsq.models import MODELS
from fedwsq.wire import Kind, Line, Link, Message, Schema, Shared, decode, encode
from fedwsq.wire.message import REPLY_METRICS

UPDATES = 1000
DISTINCT = 5  # replies, taken in turn
RUN = bytes(16)
RATES = (1.0,)
LINK = Link(Danuq(scale_init=1e-3), Fixed(1))


def measure() -> list[Figure]:
    """Fold a thousand one-bit updates of a ResNet-18, as messages: read, check, add."""
    with one_thread():
        return _measure()


def _measure() -> list[Figure]:
    params = {name: p.detach() for name, p in MODELS["resnet18"]().named_parameters()}
    line = Line(LINK, Schema(shapes(params)))
    shared = line.init(("delta",))
    payloads = [make_reply(params, line, shared, client) for client in range(DISTINCT)]
    sums = {"delta": zeros_like(params)}
    count = UPDATES // REPEATS

    def some() -> None:
        for i in range(count):
            fold(payloads[i % DISTINCT], line, shared, sums)

    fold(payloads[0], line, shared, sums)  # warm
    before = resident_bytes()
    speeds: list[float] = []  # updates a second
    grown: list[float] = []  # megabytes
    for _ in range(REPEATS):
        speeds.append(count / seconds(some))
        grown.append((resident_bytes() - before) / 1e6)

    size = len(payloads[0]) / 1e6
    note = f"{size:.3g} MB each, {size * median(speeds):.3g} MB/s on the wire"
    return [
        figure("fold 1-bit ResNet-18 updates on a core", speeds, unit="1/s", must=60, note=note),
        # Not the median: what counts is the growth after all of them.
        Figure(
            f"memory after {UPDATES} updates, growth",
            value=grown[-1],
            low=min(grown),
            high=max(grown),
            unit="MB",
            must=50,
            better="lower",
            note=f"{before / 1e6:.4g} MB before",
        ),
    ]


def make_reply(params: Params, line: Line, shared: Shared, client: int) -> bytes:
    """One client's message: normal noise about as large as the starting scale."""
    generator = torch.Generator().manual_seed(derive(0, "fold", client))
    delta = {name: torch.randn(p.shape, generator=generator) * 1e-3 for name, p in params.items()}
    key = Key(0, 1, client)
    sent = line.send({"delta": delta}, shared, key, RATES)
    metrics = dict.fromkeys(REPLY_METRICS, 1.0)
    message = Message(
        Kind.REPLY, key, RUN, weight=100.0, error=sent.error, metrics=metrics, packets=sent.packets
    )
    return encode(message, line.schema)


def fold(payload: bytes, line: Line, shared: Shared, sums: dict[str, Params]) -> None:
    """What a server does with a reply: all of it is read and checked before any of it counts."""
    message = decode(payload, line.schema, Kind.REPLY, RUN)
    line.check(message.packets, ("delta",), RATES)
    line.extents(message.packets, shared, message.key)
    line.accumulate(message.packets, shared, message.key, sums, message.weight)


def resident_bytes() -> int:
    """The memory that this process holds now; 0 where the system does not say."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return 0
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
