"""The run that `soak.py` disturbs: `python soak_run.py FOLDER LIFE JUDGED` begins it or goes on.

Its network loses, delays, repeats, damages and forges replies, its workers are killed and stopped,
and after every round a judge works out the weights again from the accepted replies alone.
"""

import json
import math
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np
import psutil
import torch

from fedwsq.core.errors import MessageError
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import Key, Params
from fedwsq.federation.charter import Charter
from fedwsq.federation.fold import Assignment, Before, Fold
from fedwsq.federation.record import RoundRecord
from fedwsq.federation.server import Server, Snapshot
from fedwsq.federation.spool import Spool
from fedwsq.plan import Plan, load_plan
from fedwsq.runs.backend import Backend, Machine, Opened, Simulated
from fedwsq.runs.run import Run
from fedwsq.transports import Answer, Failure, Order, Reply, Transport
from fedwsq.wire import Kind, Message, decode, encode, kind_of
from soak_weather import REPLY_RATES, ROUND_RATES, SETTINGS, read_judged

TOLERANCE = 1e-4  # of the largest change of a parameter: float32 sums against float64 ones


class Wrong(Exception):
    """The run did what it must never do."""


class Storm:
    """A transport around a transport, in bad weather. `delivered` is what the server was given
    first by each client of the round, `faults` how often what happened.
    """

    def __init__(self, inner: Transport, charter: Charter, dice: random.Random) -> None:
        self.inner = inner
        self.charter = charter
        self.dice = dice
        self.orders: dict[Key, Order] = {}
        self.delivered: dict[Key, bytes] = {}
        self.faults: Counter[str] = Counter()
        self._number = 0
        self._from_earlier: list[Reply] = []
        self._old: dict[int, bytes] = {}  # client -> a reply of an earlier round

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        if not orders or kind_of(orders[0].head) is not Kind.ORDER:
            yield from self.inner.dispatch(body, orders, deadline)
            return
        self._begin(orders)
        kept_back: list[Reply] = []
        for number, answer in enumerate(self.inner.dispatch(body, orders, deadline)):
            if number == 0:
                yield from self._at_mid_round()
            if isinstance(answer, Failure):
                yield answer
                continue
            for reply in self._weather(answer, kept_back):
                yield self._deliver(reply)
        for reply in kept_back:
            yield self._deliver(reply)

    def close(self) -> None:
        self.inner.close()

    def _begin(self, orders: Sequence[Order]) -> None:
        number = orders[0].key.round
        if number != self._number:  # else some of them are asked again
            self.orders = {}
            self.delivered = {}
            self.faults = Counter()
            self._number = number
        self.orders |= {order.key: order for order in orders}

    def _deliver(self, reply: Reply) -> Reply:
        self.delivered.setdefault(reply.key, reply.payload)
        return reply

    def _at_mid_round(self) -> Iterator[Answer]:
        yield from self._from_earlier
        self._from_earlier = []
        for what, rate in ROUND_RATES.items():
            if self.dice.random() >= rate:
                continue
            self.faults[what] += 1
            if what == "strangers":
                stranger = Key(0, self._number, self.dice.randrange(100, 10**6))
                yield Reply(stranger, self.dice.randbytes(100))
                yield Failure(stranger, "\x1b[2Jwho?")
            else:
                self._end_a_worker(signal.SIGKILL if what == "kill a worker" else signal.SIGSTOP)

    def _end_a_worker(self, how: signal.Signals) -> None:
        workers = psutil.Process().children()
        if workers:
            os.kill(self.dice.choice(workers).pid, how)

    def _weather(self, reply: Reply, kept_back: list[Reply]) -> list[Reply]:
        """What arrives now of a reply that was sent."""
        fates = [*REPLY_RATES, ""]
        fair = 1 - sum(REPLY_RATES.values())
        (fate,) = self.dice.choices(fates, [*REPLY_RATES.values(), fair])
        self.faults[fate or "fair"] += 1
        client = reply.key.client
        old = self._old.setdefault(client, reply.payload)
        if fate == "drop":
            return []
        if fate == "delay to the end of the round":
            kept_back.append(reply)
            return []
        if fate == "delay to a later round":
            self._from_earlier.append(reply)
            return []
        if fate == "duplicate":
            return [reply, reply._replace(payload=old), reply]
        if fate == "damage":
            return [reply._replace(payload=self._damaged(reply.payload))]
        if fate == "hostile":
            return [reply._replace(payload=self._forged(reply, old))]
        return [reply]

    def _damaged(self, payload: bytes) -> bytes:
        data = bytearray(payload)
        data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        return bytes(data) if self.dice.random() < 0.7 else bytes(data[: len(data) // 2])

    def _forged(self, reply: Reply, old: bytes) -> bytes:
        """What somebody would send who knows the format and means harm."""
        message = decode(reply.payload, self.charter.schema)
        others = [payload for key, payload in self.delivered.items() if key != reply.key]
        lies: list[bytes] = [old, self.dice.randbytes(len(reply.payload)), b"", *others[:1]]
        for lie in (
            {"weight": 0.0},
            {"weight": math.nan},
            {"weight": 3 * message.weight},  # the server knows better
            {"error": math.inf},
            {"nonce": bytes(16)},
            {"key": message.key._replace(round=message.key.round + 1)},
            {"metrics": {"loss": math.nan}},
            {"packets": {}},
        ):
            try:
                lies.append(encode(replace(message, **lie), self.charter.schema))
            except (MessageError, ValueError):
                continue  # not even a liar can write that
        return self.dice.choice(lies)


class Stormy(Simulated):
    """All clients on this machine, behind a network in bad weather.

    Another backend is disturbed in the same way: its `open` with a `Storm` around the transport.
    """

    dice = random.Random()

    def open(self, store: Path) -> Opened:
        transport, evaluator = super().open(store)
        self.storm = Storm(transport, self.charter, self.dice)
        return Opened(self.storm, evaluator)


@dataclass(frozen=True)
class Judge:
    """Works a round out again, twice, from the accepted replies alone."""

    charter: Charter
    backend: Backend
    storm: Storm

    def judge(self, before: Snapshot, after: Snapshot, record: RoundRecord) -> float:
        """How far the weights are from those worked out in float64, or `Wrong`."""
        failed = {int(client) for client in record.failures}
        accepted = [key for key in self.storm.orders if key.client not in failed]
        payloads = {key: self.storm.delivered[key] for key in sorted(accepted)}
        if len(payloads) != record.replied:
            raise Wrong(f"{record.replied} replied, and {len(payloads)} have not failed")
        self._require_the_same(before, after, payloads, record.sampled)
        if record.clipped:
            return 0.0  # not a plain mean
        return self._distance(before, after, payloads)

    def _require_the_same(
        self, before: Snapshot, after: Snapshot, payloads: dict[Key, bytes], sampled: int
    ) -> None:
        """Bit for bit what comes of a round in which nobody else was asked."""
        assignments = {}
        for key in payloads:
            order = self.storm.orders[key]
            message = decode(order.head, self.charter.schema)
            examples = self.backend.census.examples(key.client)
            assignments[key.client] = Assignment(
                message, order, 0, 0, None, None, examples, certain=True
            )
        known = Before(before.server["params"], before.shared, before.usual)
        fold = Fold(self.charter, assignments, known, Spool())
        for key, payload in payloads.items():
            fold.take(Reply(key, payload))
        alone = Server(self.charter, self.storm, None, self.backend.census, before)
        expected = alone.update(before, fold.finish(), sampled)
        for what, mine, theirs in (
            ("weights", expected.server["params"], after.server["params"]),
            ("scales", _flat(expected.shared), _flat(after.shared)),
        ):
            if fingerprint(mine) != fingerprint(theirs):
                raise Wrong(f"{what} are not those of the accepted replies")
        # A client that forgot starts anew; here nobody does.
        if not np.array_equal(expected.accepted, after.accepted):
            raise Wrong("other clients count as accepted")

    def _distance(self, before: Snapshot, after: Snapshot, payloads: dict[Key, bytes]) -> float:
        """From the weighted mean as one would write it down, in float64."""
        start = before.server["params"]
        sums = {name: torch.zeros_like(x, dtype=torch.float64) for name, x in start.items()}
        weight = 0.0
        for payload in payloads.values():
            message: Message = decode(payload, self.charter.schema)
            uplink = self.charter.uplink
            decoded = uplink.receive(message.packets, before.shared, message.key)
            examples = self.backend.census.examples(message.key.client)
            assert examples is not None
            for name, x in decoded["delta"].items():
                sums[name] += examples * x.double()
            weight += examples
        worst = 0.0
        for name, x in after.server["params"].items():
            change = sums[name] / weight if weight else sums[name]
            distance = (x.double() - start[name].double() - change).abs().max()
            # What float32 cannot tell apart at the size of the parameter is no error of ours.
            size = change.abs().max() + start[name].abs().max()
            worst = max(worst, float(distance / size.clamp(min=1e-12)))
        if worst > TOLERANCE:
            raise Wrong(f"weights are {worst:.3g} off the mean of the accepted replies")
        return worst


class JudgedRun(Run):
    """A run that does not commit a round before it was judged."""

    life = 0
    judged = Path()

    def _commit(self, record: RoundRecord, snapshot: Snapshot, rows: TextIO) -> None:
        backend = self.backend
        assert isinstance(backend, Stormy)
        judge = Judge(self.charter, backend, backend.storm)
        off = judge.judge(self._committed, snapshot, record)
        line = {
            "life": self.life,
            "round": record.round,
            "weights": fingerprint(snapshot.server["params"]),
            "accepted": record.replied,
            "clipped": record.clipped,
            "off": off,
            "faults": dict(backend.storm.faults),
            "seconds": record.seconds,
            **_resources(self.folder),
        }
        with open(self.judged, "a") as file:
            file.write(f"\n{json.dumps(line)}\n")  # on a line of its own, whatever a kill left
        super()._commit(record, snapshot, rows)

    def require_continuity(self) -> None:
        """A run that goes on has the weights that were judged last."""
        number = self._start.round
        weights = {line["round"]: line["weights"] for line in read_judged(self.judged)}
        if number and weights.get(number) != fingerprint(self._start.server["params"]):
            raise Wrong(f"goes on from other weights than those of round {number}")


def _flat(shared: dict[str, Params]) -> Params:
    return {f"{v}/{name}": x for v, states in shared.items() for name, x in states.items()}


def _resources(folder: Path) -> dict[str, float]:
    """What must not grow."""
    me = psutil.Process()
    workers = me.children(recursive=True)
    # One that was stopped, or has just begun, does not tell.
    resident = [w.memory_info().rss for w in workers if w.status() != psutil.STATUS_ZOMBIE]
    kept = [path for path in (folder / "clients").rglob("*") if path.is_file()]
    other = [path for path in folder.iterdir() if path.is_file() and path.name != "rounds.jsonl"]
    return {
        "server_megabytes": me.memory_info().rss / 1e6,
        "worker_megabytes": max(resident, default=0) / 1e6,
        "descriptors": me.num_fds(),
        "processes": len(workers),
        "client_files": len(kept),
        "client_bytes": sum(path.stat().st_size for path in kept),
        "other_files": len(other),
    }


def plan() -> Plan:
    return load_plan("quickstart", SETTINGS)


def machine_backend(plan: Plan, machine: Machine) -> Stormy:
    return Stormy(plan, machine)


def main(folder: Path, life: int, judged: Path) -> None:
    Stormy.dice = random.Random(f"soak {life}")
    JudgedRun.life = life
    JudgedRun.judged = judged
    run_folder = folder / "run"
    if (run_folder / "config.toml").exists():
        opening = JudgedRun.resume(run_folder, workers=2, backend=machine_backend)
    else:
        opening = JudgedRun.create(plan(), run_folder, workers=2, backend=machine_backend)
    with opening as run:
        assert isinstance(run, JudgedRun)
        run.require_continuity()
        run.go()


if __name__ == "__main__":
    # A shell has its background commands ignore this signal, and their children with them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
