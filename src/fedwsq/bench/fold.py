"""How fast a server folds replies on one core, and that its memory does not grow with them."""

import os
from pathlib import Path
from statistics import median

import torch

from fedwsq.bench.figure import REPEATS, Figure, figure, seconds
from fedwsq.codecs import Danuq, Fixed
from fedwsq.core.seeds import derive
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import zeros_like
from fedwsq.core.types import Key, Params
from fedwsq.models import MODELS
from fedwsq.wire import Kind, Link, Message, Schema, Shared, decode, encode
from fedwsq.wire.message import REPLY_METRICS

UPDATES = 1000
DISTINCT = 5  # replies, taken in turn
RUN = bytes(16)
RATES = (1.0,)
LINK = Link(Danuq(), Fixed(1))


def measure() -> list[Figure]:
    """Fold a thousand one-bit updates of a ResNet-18, as messages: read, check, add."""
    with one_thread():
        return _measure()


def _measure() -> list[Figure]:
    params = {name: p.detach() for name, p in MODELS["resnet18"]().named_parameters()}
    schema = Schema({name: tuple(p.shape) for name, p in params.items()})
    shared = LINK.init(schema, ("delta",))
    payloads = [make_reply(params, schema, shared, client) for client in range(DISTINCT)]
    sums = {"delta": zeros_like(params)}
    fold(payloads[0], schema, shared, sums)  # warm
    count, before, speeds, grown = UPDATES // REPEATS, resident_bytes(), [], []

    def some() -> None:
        for i in range(count):
            fold(payloads[i % DISTINCT], schema, shared, sums)

    for _ in range(REPEATS):
        speeds.append(count / seconds(some))
        grown.append((resident_bytes() - before) / 1e6)
    size = len(payloads[0]) / 1e6
    note = f"{size:.3g} MB each, {size * median(speeds):.3g} MB/s on the wire"
    return [
        figure("fold 1-bit ResNet-18 updates on a core", speeds, unit="1/s", must=60, note=note),
        Figure(
            f"memory after {UPDATES} updates, growth", grown[-1], min(grown), max(grown), "MB", 50, "lower",
            note=f"{before / 1e6:.4g} MB before",
        ),
    ]  # fmt: skip


def make_reply(params: Params, schema: Schema, shared: Shared, client: int) -> bytes:
    """One client's message: normal noise about as large as the starting scale."""
    generator, key = torch.Generator().manual_seed(derive(0, "fold", client)), Key(0, 1, client)
    delta = {name: torch.randn(p.shape, generator=generator) * 1e-3 for name, p in params.items()}
    sent = LINK.send({"delta": delta}, shared, key, RATES, schema)
    metrics = dict.fromkeys(REPLY_METRICS, 1.0)
    message = Message(
        Kind.REPLY, key, RUN, weight=100.0, error=sent.error, metrics=metrics, packets=sent.packets
    )
    return encode(message, schema)


def fold(payload: bytes, schema: Schema, shared: Shared, sums: dict[str, Params]) -> None:
    """What a server does with a reply: all of it is read and checked before any of it counts."""
    message = decode(payload, schema, Kind.REPLY, RUN)
    LINK.check(message.packets, ("delta",), RATES, schema)
    LINK.accumulate(message.packets, shared, message.key, sums, message.weight, schema)


def resident_bytes() -> int:
    """The memory that this process holds now; 0 where the system does not say."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0
