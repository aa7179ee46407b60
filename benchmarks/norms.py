"""How far honest replies are from what is usual: what the bounds on them are chosen by.

    python benchmarks/norms.py OUT [SETTING ...] [--data DATA_ROOT] [--write FILE]

Every setting is trained honestly with no bounds in force, and every reply is measured as a server
measures it: the norm of each decoded vector over what was usual when it came (`bounds.norm` cuts at
a multiple of that), and a client's own scales over the median of its cohort (`bounds.scale`).
Settings whose measures are in OUT already are not run again; what is found joins what the file has.
CIFAR-10 is left out without its data.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwsq.federation.bounds import Seen, Usual, limits
from fedwsq.federation.simulation import simulate
from fedwsq.plan import Bounds, Plan, load_plan
from fedwsq.training.precision import resolve_precision
from fedwsq.transports import Answer, Order, Reply, Transport
from fedwsq.wire import Kind, decode
from fedwsq.wire.parse import kind_of
from script import keep, parser
from soak_weather import SETTINGS as SOAK

CPU = torch.device("cpu")
UNBOUNDED = {"bounds.norm": 0.0, "eval_every": 1000}
SKEWED = {"data.partition.alpha": 0.1, "data.clients": 20, "training.batch_size": 10}
# A client's steps are as many as its batches, and its way is as long.
SMALL_STEPS = {"method": "fedavg", **SKEWED, "training.epochs": 1, "training.lr": 0.01}
METHODS = ("scaffold", "feddyn", "fedadam", "fedsmoo", "fedacg", "fedcm", "fedavgm", "fedwsq")
# Until most clients have learned what there is, and some have not.
LONG = {**SOAK, "min_replies": 1, "deadline": 0.0, "eval_every": 10_000}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg, 40 rounds": {"method": "fedavg", "rounds": 40},
    "fedavg, 120 rounds": {"method": "fedavg", "rounds": 120, "training.epochs": 2},
    **{method: {"method": method} for method in METHODS},
    "two clients a round": {"clients_per_round": 2},
    "three clients a round": {"clients_per_round": 3},
    "Dirichlet 0.05": {"data.partition.alpha": 0.05},
    "20 clients, Dirichlet 0.1, batches of 10": SKEWED,
    "the same, small steps": SMALL_STEPS,
    "danuq, 1 bit": {"uplink.bits": 1},
    "danuq, 1 bit, error feedback": {"uplink.bits": 1, "uplink.error_feedback": True},
    "danuq, scale 1e-3 at first": {"uplink.codec.scale_init": 1e-3},
    "danuq, a scale each channel": {"uplink.codec.scale_per": "channel"},
    "danuq, a scale each block": {"uplink.codec.scale_per": "block"},
    "ecq, 0.5 bits": {"uplink": {"codec": "ecq", "bits": 0.5}},
    "topk, 0.5 bits": {"uplink": {"codec": "topk", "bits": 0.5}},
    "topk, 0.5 bits, error feedback": {
        "uplink": {"codec": "topk", "bits": 0.5, "error_feedback": True}
    },
    **{f"soak.py, {rounds} rounds": {**LONG, "rounds": rounds} for rounds in (1800, 2400)},
}
ROUNDS = 24


class Listening:
    """A transport that keeps the replies of the last round."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.replies: list[bytes] = []

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        training = kind_of(orders[0].head) is Kind.ORDER
        if training:
            self.replies = []
        for answer in self.inner.dispatch(body, orders, deadline):
            if training and isinstance(answer, Reply):
                self.replies.append(answer.payload)
            yield answer

    def close(self) -> None:
        self.inner.close()


def listen(plan: Plan) -> list[list[dict[str, Any]]]:
    """Of every round, what each client's reply measures."""
    simulation = simulate(plan)
    transport = Listening(simulation.serial(CPU))
    server = simulation.server(transport)
    server.evaluator = None
    uplink = simulation.charter.uplink
    rounds = []
    for _ in range(plan.rounds):
        shared = server.snapshot.shared
        server.step()
        found = []
        for payload in transport.replies:
            message = decode(payload, simulation.charter.schema)
            extents = uplink.extents(message.packets, shared, message.key)
            scales = {}
            for vector, states in shared.items():
                for name in states:
                    side = np.array(message.packets[vector][name].side)
                    scales[f"{vector}/{name}"] = float(np.sqrt(np.square(side).mean()))
            found.append(
                {
                    "norms": {vector: extent.energy**0.5 for vector, extent in extents.items()},
                    "examples": message.weight,
                    "scales": scales,
                }
            )
        rounds.append(found)
    return rounds


def judge(rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """The largest ratios, as the bounds see them."""
    usual = Usual()
    over: list[float] = []
    scales: list[float] = []
    for found in rounds:
        cohort = [Seen(each["norms"], each["examples"]) for each in found]
        vectors = list(cohort[0].norms)
        most = limits(Bounds(norm=1.0), usual, () if usual.knows(vectors) else cohort)
        over += [norm / most.norms[v] for seen in cohort for v, norm in seen.norms.items()]
        usual = usual.after(cohort)
        for name in found[0]["scales"]:
            own = [each["scales"][name] for each in found if each["scales"][name]]
            scales.append(max(own, default=0.0) / (statistics.median(own) if own else 1.0))
    over.sort()
    return {
        "updates": len(over),
        "norm over usual, median": round(statistics.median(over), 3),
        "99 %": round(over[int(0.99 * len(over))], 3),
        "most": round(over[-1], 3),
        "scale over cohort, most": round(max(scales), 3) if scales else None,
    }


def plans(data: str) -> Iterator[tuple[str, Plan]]:
    for name, settings in SETTINGS.items():
        yield name, load_plan("quickstart", {"rounds": ROUNDS, **UNBOUNDED, **settings})
    for method in ("fedwsq", "fedavg") if data else ():
        settings = {"method": method, "data.root": data, "rounds": 12, "training.epochs": 1}
        plan = load_plan("cifar10-resnet8", {**UNBOUNDED, **settings})
        precision = resolve_precision(plan.training.precision, CPU)
        yield (
            f"cifar10, resnet8, {method}",
            replace(plan, training=replace(plan.training, precision=precision)),
        )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("settings", nargs="*", metavar="SETTING", help="by default all of them")
    options.add_argument("--data", default="", help="where CIFAR-10 lies")
    options.add_argument("--write", type=Path)
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = dict(plans(args.data))
    for name in args.settings or found:
        if name not in found:
            options.error(f"no setting {name!r}; there are {', '.join(map(repr, found))}")
    for name in args.settings or found:
        kept = args.out / f"{name.replace(' ', '_').replace(',', '')}.json"
        if not kept.exists():
            kept.write_text(json.dumps(listen(found[name])))
        keep(judge(json.loads(kept.read_text())), name, args.write)


if __name__ == "__main__":
    main()
