"""What one attacker of five costs: real clients that lie, through a real transport.

    python benchmarks/attacks.py linear OUT [--write FILE]
    python benchmarks/attacks.py digits OUT [--write benchmarks/results/attacks.json]
    python benchmarks/attacks.py cifar10 OUT --data DATA_ROOT [--write FILE]

In every round one of the five clients asked, another each time, answers with a message of its own
making: well-formed, with the right key, nonce and checksum. `digits` is the quick start, 40 rounds;
`linear` is the same with a linear model, a few seconds a run; `cifar10` is ResNet-8 with Dirichlet
0.3, 20 rounds of one epoch. A cell is an accuracy in percent, the mean over three seeds of the last
five rounds, with CIFAR-10 of the last one; `four honest` is what is left if the attacker says
nothing. Every run is a run directory in OUT; those that are done are not run again, those that were
stopped go on. Ctrl-C at any time: the table is written from what there is. With --attack only these
are run, and the table keeps what it has of others.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedwsq.codecs import Float32
from fedwsq.codecs.base import Packet
from fedwsq.core.errors import FedwsqError
from fedwsq.core.seeds import derive
from fedwsq.core.tree import scale
from fedwsq.federation.charter import Charter
from fedwsq.plan import Plan, load_plan
from fedwsq.runs import Run
from fedwsq.runs.backend import Machine, Opened, Simulated
from fedwsq.transports import Answer, Failure, Order, Reply, Transport
from fedwsq.wire import Kind, Line, Message, Shared, decode, encode
from fedwsq.wire.parse import kind_of
from script import parser, rows

SEEDS = (0, 1, 2)
LAST = 5  # scores that are averaged
ONCE = 20  # the round of the single message
Attack = Callable[[Message, Shared, Line], Message | None]  # None: no answer at all


# The attacks: a client's honest reply to what it sends instead.


def honest(message: Message, shared: Shared, line: Line) -> Message:
    return message


def silent(message: Message, shared: Shared, line: Line) -> None:
    return None


def times(factor: float, message: Message, shared: Shared, line: Line) -> Message:
    """The whole update multiplied, in packets that bring their own scales."""
    vectors = line.receive(message.packets, shared, message.key)
    rates = (next(packet.rate for packet in _coded(message, line).values()),)
    sent = line.send(
        {vector: scale(factor, tensors) for vector, tensors in vectors.items()},
        {},
        message.key,
        rates,
    )
    return replace(message, packets=sent.packets)


def heavy(message: Message, shared: Shared, line: Line) -> Message:
    return replace(message, weight=1000 * message.weight)


def side(message: Message, shared: Shared, line: Line) -> Message:
    """Its own stds, by which the shared scale moves, a million times too large."""
    return _changed(
        message, line, lambda packet: packet._replace(side=tuple(1e6 * s for s in packet.side))
    )


def own_scale(message: Message, shared: Shared, line: Line) -> Message:
    return _changed(
        message,
        line,
        lambda packet: packet._replace(side=(1e19,) * len(packet.side), own_scale=True),
    )


def uncoded(value: float, message: Message, shared: Shared, line: Line) -> Message:
    """Every value of the tensors that travel in float32."""

    def filled(packet: Packet) -> Packet:
        return packet._replace(code=np.full(packet.numel, value, "<f4").tobytes())

    return _changed(message, line, filled, coded=False)


def once(message: Message, shared: Shared, line: Line) -> Message:
    """A single message, in the middle of the run; otherwise honest."""
    if message.key.round != ONCE:
        return message
    return uncoded(9.99e19, message, shared, line)


ATTACKS: dict[str, Attack] = {
    "nobody attacks": honest,
    "four honest": silent,
    "update x -10": partial(times, -10.0),
    "sign flip": partial(times, -1.0),
    "weight x 1000": heavy,
    "side x 1e6": side,
    "own scale 1e19": own_scale,
    "uncoded 1e4": partial(uncoded, 1e4),
    "one message of 9.99e19": once,
}


def _coded(message: Message, line: Line) -> dict[str, Packet]:
    delta = message.packets["delta"]
    return {slot.name: delta[slot.name] for slot in line.slots if _is_coded(slot.codec)}


def _is_coded(codec: object) -> bool:
    return not isinstance(codec, Float32)


def _changed(
    message: Message, line: Line, change: Callable[[Packet], Packet], coded: bool = True
) -> Message:
    """The message with the coded packets changed, or with the others."""
    packets = {}
    for vector, tensors in message.packets.items():
        packets[vector] = dict(tensors)
        for slot in line.slots:
            if _is_coded(slot.codec) == coded:
                packets[vector][slot.name] = change(tensors[slot.name])
    return replace(message, packets=packets)


# A transport with an attacker in it.


class Hostile:
    """Passes everything on but the reply of one client a round."""

    def __init__(self, inner: Transport, charter: Charter, attack: Attack) -> None:
        self.inner = inner
        self.charter = charter
        self.attack = attack

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        answers = self.inner.dispatch(body, orders, deadline)
        if kind_of(orders[0].head) is not Kind.ORDER:
            yield from answers
            return
        shared = decode(body, self.charter.schema).states
        chosen = derive(orders[0].key.seed, "attacker", orders[0].key.round) % len(orders)
        attacker = orders[chosen].key
        for answer in answers:
            if answer.key == attacker and isinstance(answer, Reply):
                yield self._answer(answer, shared)
            else:
                yield answer

    def close(self) -> None:
        self.inner.close()

    def _answer(self, reply: Reply, shared: Shared) -> Answer:
        schema = self.charter.schema
        lie = self.attack(decode(reply.payload, schema), shared, self.charter.uplink)
        if lie is None:
            return Failure(reply.key, "silent")
        return Reply(reply.key, encode(lie, schema))


class Attacked(Simulated):
    """A simulation whose clients are not all honest."""

    def __init__(self, attack: Attack, plan: Plan, machine: Machine) -> None:
        super().__init__(plan, machine)
        self.attack = attack

    def open(self, store: Path) -> Opened:
        opened = super().open(store)
        return opened._replace(transport=Hostile(opened.transport, self.charter, self.attack))


# What is run.

Settings = Mapping[str, Any]
DEFENCES: dict[str, Settings] = {
    "defaults": {},
    "trimmed mean": {"combine": "trimmed_mean", "aggregation": "uniform"},
    "median": {"combine": "median", "aggregation": "uniform"},
    "median, buckets of 2": {
        "combine": {"name": "median", "bucket": 2},
        "aggregation": "uniform",
    },
    "centred clipping": {"combine": "centred_clipping", "aggregation": "uniform"},
    "krum": {"combine": "krum", "aggregation": "uniform"},
}
CIFAR_DEFENCES = ("centred clipping", "krum", "median, buckets of 2")
Cell = tuple[str, str]  # attack, defence
# Runs that go on without an attacker: whether a model is lost for good.
RECOVERING: tuple[Cell, ...] = (("update x -10", "defaults"), ("uncoded 1e4", "defaults"))
RECOVERY = {"linear": 60, "digits": 60, "cifar10": 20}  # rounds


def digits_cells() -> list[Cell]:
    cells = [("four honest", "defaults")]
    for attack in ATTACKS:
        if attack != "four honest":
            cells += [(attack, "defaults"), (attack, "centred clipping")]
    for defence in ("krum", "median, buckets of 2", "trimmed mean", "median"):
        cells += [(attack, defence) for attack in ("update x -10", "sign flip", "nobody attacks")]
    return cells


def cifar_cells() -> list[Cell]:
    cells = []
    for attack in ("four honest", "sign flip", "update x -10", "nobody attacks"):
        cells.append((attack, "defaults"))
        if attack != "four honest":
            cells += [(attack, defence) for defence in CIFAR_DEFENCES]
    return cells


def run_cell(folder: Path, config: str, settings: Settings, attack: str) -> float | None:
    """The accuracy that a run ends with; None: it stopped."""
    backend = partial(Attacked, ATTACKS[attack])
    try:
        if (folder / "summary.json").exists():
            pass
        elif (folder / "config.toml").exists():
            finish(Run.resume(folder, workers=1, backend=backend))
        else:
            plan = load_plan(config, dict(settings))
            finish(Run.create(plan, folder, workers=1, backend=backend))
    except FedwsqError as error:
        print(f"{folder.name}: stopped: {error}", flush=True)
        return None
    return accuracy(folder)


def recover(attacked: Path, folder: Path, rounds: int) -> float:
    """The same run going on for some rounds in which nobody attacks."""
    if not folder.exists():
        shutil.copytree(attacked, folder)
    honest_rounds = {"rounds": len(rows(attacked)) + rounds}
    if len(rows(folder)) < honest_rounds["rounds"]:
        finish(Run.resume(folder, honest_rounds, workers=1))
    return accuracy(folder)


def finish(context: AbstractContextManager[Run]) -> None:
    with context as run:
        run.go()


def accuracy(folder: Path) -> float:
    found = [row["test_accuracy"] for row in rows(folder) if row["test_accuracy"] is not None]
    return 100 * statistics.fmean(found[-LAST:])


def linear_net(classes: int = 10, channels: int = 1) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


LINEAR = {
    "model": {"name": "attacks:linear_net", "standardize": "none"},
    "uplink.select": "weights",
}


def world_settings(world: str, data: str) -> tuple[str, Settings]:
    if world == "digits":
        return "quickstart", {}
    if world == "linear":
        return "quickstart", LINEAR
    return "cifar10-resnet8", {"data.root": data, "training.epochs": 1, "eval_every": 20}


def run_all(
    world: str, out: Path, data: str, seeds: Sequence[int], attacks: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A row for each cell and seed, as they are done."""
    cells = cifar_cells() if world == "cifar10" else digits_cells()
    config, base = world_settings(world, data)
    for attack, defence in cells:
        if attack not in attacks:
            continue
        for seed in seeds:
            settings = {**base, **DEFENCES[defence], "seed": seed}
            name = f"{attack} {defence} {seed}".replace(" ", "_").replace(",", "")
            folder = out / world / name
            row = {"attack": attack, "defence": defence, "seed": seed}
            row["accuracy"] = run_cell(folder, config, settings, attack)
            if row["accuracy"] is not None and (attack, defence) in RECOVERING:
                later = out / world / f"{name}_later"
                row["later"] = recover(folder, later, RECOVERY[world])
                row["later_rounds"] = RECOVERY[world]
            print(json.dumps(row), flush=True)
            yield row


def table(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and spread over the seeds that there are."""
    cells: dict[str, dict[str, Any]] = {}
    for row in found:
        cell = cells.setdefault(f"{row['attack']} | {row['defence']}", {"seeds": {}})
        cell["seeds"][str(row["seed"])] = row["accuracy"]
        if "later" in row:
            later = cell.setdefault(f"after {row['later_rounds']} honest rounds more", {})
            later[str(row["seed"])] = round(row["later"], 2)
    for cell in cells.values():
        values = [value for value in cell["seeds"].values() if value is not None]
        cell["stopped"] = len(cell["seeds"]) - len(values)
        cell["mean"] = round(statistics.fmean(values), 2) if values else None
        cell["seeds"] = {
            seed: None if value is None else round(value, 2)
            for seed, value in cell["seeds"].items()
        }
    return cells


def main() -> None:
    options = parser(__doc__)
    options.add_argument("world", choices=("linear", "digits", "cifar10"))
    options.add_argument("out", type=Path)
    options.add_argument("--data", default="", help="where CIFAR-10 lies")
    options.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    options.add_argument("--attack", choices=ATTACKS, nargs="+", default=list(ATTACKS))
    options.add_argument("--write", type=Path)
    args: argparse.Namespace = options.parse_args()
    (args.out / args.world).mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {}
    if args.write and args.write.exists() and len(args.attack) < len(ATTACKS):
        kept = json.loads(args.write.read_text())
    found: list[dict[str, Any]] = []
    for row in run_all(args.world, args.out, args.data, args.seeds, args.attack):
        found.append(row)
        if args.write:
            args.write.write_text(json.dumps({**kept, **table(found)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
