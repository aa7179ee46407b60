"""What secure sums cost on a ResNet-18: bytes and seconds, beside other ways to send it.

    python benchmarks/secure.py [PART ...] [--clients 5 20 100]
        [--write benchmarks/results/secure.json]

Bytes are those of real rounds with the given numbers of clients, `method=fedwsq-secure` on the
`cifar100` config: every message of every phase that the server got, over the clients. Clients take
one step on made-up pictures each, as the length of a message does not depend on what was learned.
Of Flower's SecAgg+ it is the four messages of one client, made by Flower's own mod, in a cohort
where the others go through the phases of keys and shares alone (`secaggplus.py`).

Seconds are CPU time of one core; training is that of one client in the same config on 500 made-up
pictures of 32 x 32. Parts are plain, training, secure and secaggplus, by default all; what a part
finds joins what the file has. Takes some ten minutes, 5 GB on disk and 5 GB of memory.
"""

import argparse
import functools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from fedwsq.federation.record import RoundRecord
from fedwsq.federation.simulation import simulate
from fedwsq.federation.site import Site
from fedwsq.plan import Plan, load_plan
from fedwsq.secure.member import Member
from fedwsq.secure.ring import Part
from fedwsq.secure.session import COMPLETE
from fedwsq.secure.teller import Teller
from fedwsq.transports import Answer, Order, Reply, Transport
from fedwsq.wire import Kind, decode, kind_of
from script import keep, parser

CPU = torch.device("cpu")
# Who masks: all that a client does for a secure sum, and all that the server does.
CLIENT = ("keys", "shares", "receive", "ballot", "consent", "reveal")
SERVER = ("count",)


def plan_of(clients: int, size: int, each: int, **overrides: Any) -> Plan:
    """The paper's ResNet-18 for as many clients as there are, with made-up pictures."""
    data = {
        "name": "synthetic",
        "samples": max(100, each * clients),
        "test_samples": 100,
        "classes": 100,
        "channels": 3,
        "size": size,
        "clients": clients,
        "partition": "iid",
    }
    settings = {"rounds": 1, "eval_every": 2, "data": data, "clients_per_round": clients}
    return load_plan("cifar100", settings | overrides)


def hasty(clients: int, **overrides: Any) -> Plan:
    """One step of each client."""
    training = {"training.epochs": 1, "training.batches_per_epoch": 1}
    return plan_of(clients, 8, 10, **training, **overrides)


class Weighed:
    """Counts the bytes that pass, up and down, by phase."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        if kind_of(orders[0].head) is not Kind.PHASE:  # to score the model
            yield from self.inner.dispatch(body, orders, deadline)
            return
        phase = json.loads(decode(orders[0].head, None).text)["phase"]
        for order in orders:
            self.down[phase] += len(order.head) + len(order.body or body)
        for answer in self.inner.dispatch(body, orders, deadline):
            if isinstance(answer, Reply):
                self.up[phase] += len(answer.payload)
            yield answer

    def close(self) -> None:
        self.inner.close()


@contextmanager
def timed(owner: type, name: str, spent: Counter[str]) -> Iterator[None]:
    """CPU seconds in a method, while this is open."""
    method: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(method)
    def measured(*args: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return method(*args, **named)
        finally:
            spent[name] += time.process_time() - began

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, method)


def one_round(plan: Plan) -> tuple[RoundRecord, Weighed, Counter[str]]:
    """A round in this process, what passed and where the time went."""
    spent: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as watched:
        for name in CLIENT:
            watched.enter_context(timed(Member, name, spent))
        for owner, name in ((Teller, "count"), (Site, "_learn"), (Part, "pack"), (Part, "unpack")):
            watched.enter_context(timed(owner, name, spent))
        simulation = simulate(plan)
        transport = Weighed(simulation.serial(CPU, Path(folder) / "clients"))
        record = simulation.server(transport).step()
    if record.replied != plan.clients_per_round:
        raise SystemExit(f"{record.failed} clients failed: {record.failures}")
    return record, transport, spent


def secure(clients: int) -> dict[str, Any]:
    plan = hasty(clients, method="fedwsq-secure")
    record, passed, spent = one_round(plan)
    coded, parameters = sizes(plan)
    bound = clients.bit_length()  # ceil(log2(n + 1))
    up = record.uplink_bytes / clients
    bits = 8 * up / coded
    return {
        "clients": clients,
        "bits_needed": bound,
        "up_bytes_a_client": round(up),
        "up_bits_a_coded_parameter": round(bits, 4),
        "above_bits_needed_percent": round(100 * (bits / bound - 1), 2),
        "up_bits_a_parameter": round(8 * up / parameters, 4),
        "up_bytes_by_phase": {phase: round(n / clients) for phase, n in passed.up.items()},
        "down_bytes_a_client": round(record.downlink_bytes / clients),
        "down_bytes_by_phase": {phase: round(n / clients) for phase, n in passed.down.items()},
        "client_masking_seconds": round(sum(spent[name] for name in CLIENT) / clients, 3),
        "client_packing_seconds": round(spent["pack"] / clients, 3),
        "server_unmasking_seconds": round(spent["count"], 3),
        "server_unpacking_seconds": round(spent["unpack"], 3),
    }


def sizes(plan: Plan) -> tuple[int, int]:
    """Coded parameters, and all."""
    charter = simulate(plan).charter
    elements = charter.schema.sizes
    return sum(elements[name] for name in charter.uplink.coded), sum(elements.values())


def secaggplus(clients: int) -> dict[str, Any]:
    from secaggplus import Nodes  # needs Flower

    charter = simulate(hasty(5)).charter
    nodes = Nodes(list(charter.schema.shapes.values()), clients, min(clients, COMPLETE + 1))
    nodes.measure()
    up = sum(nodes.sent.values())
    return {
        "clients": clients,
        "up_bytes_a_client": up,
        "up_bits_a_parameter": round(8 * up / charter.schema.elements, 4),
        "up_bytes_by_stage": nodes.sent,
        "client_masking_seconds": round(nodes.seconds, 3),
    }


def plain(clients: int) -> dict[str, Any]:
    """What the same clients send one bit a parameter with, or float32, each by itself."""
    plan = hasty(clients, **{"uplink.bits": 1})
    record, _, _ = one_round(plan)
    coded, parameters = sizes(plan)
    return {
        "coded_parameters": coded,
        "parameters": parameters,
        "float32_up_bytes_a_client": record.uplink_bytes_float32 // clients,
        "one_bit_up_bytes_a_client": record.uplink_bytes // clients,
    }


def training(clients: int) -> dict[str, Any]:
    """Of one client, ten batches of 50; the config has five times as many."""
    _, _, spent = one_round(plan_of(1, 32, 500, **{"training.epochs": 1}))
    return {"seconds_of_ten_steps": round(spent["_learn"], 2)}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "plain": plain,
    "training": training,
    "secure": secure,
    "secaggplus": secaggplus,
}
COHORTS = {"plain": [5], "training": [1]}  # of others, as many as are asked for


def main() -> None:
    options = parser(__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options.add_argument("--clients", type=int, nargs="+", default=[5, 20, 100])
    options.add_argument("--write", type=Path)
    args: argparse.Namespace = options.parse_args()
    for part in args.parts or PARTS:
        for clients in COHORTS.get(part, args.clients):
            keep(PARTS[part](clients), f"{part}, {clients} clients", args.write)


if __name__ == "__main__":
    main()
