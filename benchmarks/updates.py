"""Every codec on real updates: error at equal measured bytes, with weight standardization or none.

    python benchmarks/updates.py DATA_ROOT [--rounds 8] [--write benchmarks/results/updates.md]

ResNet-8 on CIFAR-10, 100 clients, 5 a round, Dirichlet 0.3, one epoch of ten batches a client. The
updates of the last round's clients are taken from its replies, which travel in float32; the scale
that DANUQ shares is the mean std of the round before, as its server would know it. Errors are
|decoded - update|^2 / |update|^2 over the tensors that FedWSQ codes; bits count code and side
values. Codecs that can hit any rate are asked for DANUQ's own measured one.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwsq.codecs import CODECS, Codec
from fedwsq.federation.simulation import SitePool, simulate
from fedwsq.plan import load_plan
from fedwsq.training.precision import resolve_precision
from fedwsq.transports import Transport
from fedwsq.wire import Kind, decode
from fedwsq.wire.link import published
from fedwsq.wire.parse import kind_of

CPU = torch.device("cpu")
Updates = list[dict[str, Tensor]]


class Listening:
    """A transport that keeps the replies of the last round."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.replies = []

    def dispatch(self, body, orders, deadline=None):
        if kind_of(orders[0].head) is not Kind.ORDER:
            yield from self.inner.dispatch(body, orders, deadline)
            return
        self.replies = []
        for answer in self.inner.dispatch(body, orders, deadline):
            self.replies.append(answer.payload)
            yield answer

    def close(self) -> None:
        self.inner.close()


def take_updates(data: Path, standardize: str, rounds: int) -> tuple[Updates, Updates]:
    """The coded tensors of every client's update in the last two rounds of a run."""
    settings = {
        "method": "fedavg",
        "model.standardize": standardize,
        "data.root": str(data),
        "training.epochs": 1,
    }
    plan = load_plan(
        "cifar10-resnet8", {**settings, "rounds": rounds + 1, "eval_every": rounds + 1}
    )
    plan = replace(plan, training=replace(plan.training, precision=resolve_precision("auto", CPU)))
    simulation = simulate(plan)
    schema = simulation.charter.schema
    transport = Listening(SitePool(plan, 2, CPU))
    server = simulation.server(transport)
    kept = []
    for _ in range(rounds):
        server.step()
        kept.append([decode(payload, schema).packets["delta"] for payload in transport.replies])
    transport.close()
    names = published(schema.shapes)

    def tensors(packets) -> dict[str, Tensor]:
        flat = {
            name: torch.from_numpy(np.frombuffer(packets[name].code, "<f4").copy())
            for name in names
        }
        return {name: x.view(schema.shapes[name]) for name, x in flat.items()}

    return [tensors(each) for each in kept[-2]], [tensors(each) for each in kept[-1]]


def kurtosis(updates: Updates) -> float:
    """The median over tensors and clients; 3 for a normal distribution."""
    found = []
    for update in updates:
        for x in update.values():
            centred = (x - x.mean()).double()
            found.append(float(centred.pow(4).mean() / centred.square().mean() ** 2))
    return float(np.median(found))


def error(codec: Codec, rate: float, before: Updates, updates: Updates) -> tuple[float, float]:
    """The relative squared error and the bits sent a parameter, over all tensors and clients."""
    lost = energy = bits = count = 0.0
    for client, update in enumerate(updates):
        for index, (name, x) in enumerate(update.items()):
            shared = codec.init(x.numel(), x.shape[0])
            if shared.numel():
                # rate and seed do not matter: the side values are the local scales
                sides = [codec.encode(each[name], shared, rate, seed=0).side for each in before]
                shared = torch.tensor(sides).mean(0)
            packet = codec.encode(x, shared, rate, seed=1000 * client + index)
            decoded = codec.decode(packet, shared, seed=1000 * client + index)
            lost += float((decoded - x.flatten()).double().square().sum())
            energy += float(x.double().square().sum())
            bits += 8 * (len(packet.code) + 4 * len(packet.side))
            count += x.numel()
    return lost / energy, bits / count


def contenders(rate: int, measured: float) -> Iterator[tuple[str, Codec, float]]:
    """Every codec, and the settings worth a row of their own, at about this many bits."""
    make = {
        name: cls
        for name, cls in CODECS.items()
        if name not in ("float32", "float16", "danuq8", "danuq4")
    }
    variants: list[tuple[str, Codec]] = [(name, cls()) for name, cls in make.items()]
    variants += [
        ("danuq, optimal levels", make["danuq"](levels="optimal")),
        ("danuq, lloyd-max levels", make["danuq"](levels="lloyd-max")),
        ("danuq, scale a channel", make["danuq"](scale_per="channel")),
        ("uq, nearest", make["uq"](rounding="nearest")),
        ("uq, nearest, fitted scale", make["uq"](rounding="nearest", unit="fitted")),
        ("nf, fitted scale", make["nf"](unit="fitted")),
        ("fp, fitted scale", make["fp"](unit="fitted")),
        ("nf, blocks of 64", make["nf"](scale_per="block")),
        ("sign, scale a channel", make["sign"](scale_per="channel")),
        ("eden, least squares", make["eden"](scale="least-squares")),
    ]
    for name, codec in variants:
        if not codec.rates.fixed_length:
            yield name, codec, measured
        elif rate in codec.rates:
            yield name, codec, rate


def table(data: Path, rounds: int) -> str:
    taken = {which: take_updates(data, which, rounds) for which in ("none", "ws")}
    kurtoses = {which: kurtosis(updates) for which, (_, updates) in taken.items()}
    lines = [
        f"Update kurtosis (median over tensors and clients; normal: 3): {kurtoses['none']:.1f} "
        f"without weight standardization, {kurtoses['ws']:.1f} with it.",
        "",
        "| bits | codec | measured bits, WS off | error, WS off "
        "| measured bits, WS on | error, WS on |",
        "|---|---|---|---|---|---|",
    ]
    for rate in (1, 2, 4):
        rows = []
        measured = error(CODECS["danuq"](), rate, *taken["none"])[1]
        for name, codec, asked in contenders(rate, measured):
            (off, bits_off), (on, bits_on) = (
                error(codec, asked, *taken[which]) for which in ("none", "ws")
            )
            rows.append(
                (on, f"| {rate} | {name} | {bits_off:.3f} | {off:.4g} | {bits_on:.3f} | {on:.4g} |")
            )
        lines += [line for _, line in sorted(rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    text = table(args.data, args.rounds)
    print(text)
    if args.write:
        args.write.write_text(text)
