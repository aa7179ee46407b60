"""What is killed on Flower, how long it takes until rounds go on, and whether they are right.

    python benchmarks/flower_kills.py OUT [--deadline SECONDS] [--write FILE]

A real SuperLink and three SuperNodes on loopback, each with its own examples; FedWSQ at 1 bit with
error feedback. `kill -9` of a node while its client trains, then of the ServerApp, then of the
SuperLink; what was killed is started again by the command that had started it. Afterwards every
round is worked out anew in one process, with the same accepted replies: weights must be equal, bit
for bit. Exit code 1 if they are not.
"""

import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from fedwsq.algorithms import FedAvg
from fedwsq.cli.work.deploy_local import overrides_of, split_plan
from fedwsq.core.tree import fingerprint
from fedwsq.core.types import State, Update, Vectors
from fedwsq.federation.simulation import simulate
from fedwsq.flower.children import Child, Children, descendants
from fedwsq.flower.local import Local, free_ports, listens
from fedwsq.flower.shards import write_shards
from fedwsq.plan import Plan
from fedwsq.training import LocalTask
from script import Row, parser
from soak_flower import Replayed, serverapps, wait, whole_rows

NODES = 3
VICTIM = 2
MARK = "FLOWER_KILLS_MARK"  # in the environment: a file that is there once the victim is at work
SETTINGS = [
    "method=fedwsq",
    "uplink.bits=1",
    "uplink.error_feedback=true",
    "training.epochs=1",
    "training.batches_per_epoch=2",
]
HELD = ["algorithm.name=flower_kills:Held"]


@dataclass(frozen=True)
class Held(FedAvg):
    """FedAvg, in whose third round one client trains until it is killed."""

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        if (task.key.round, task.key.client) == (3, VICTIM):
            with contextlib.suppress(KeyError, FileExistsError):
                Path(os.environ[MARK]).touch(exist_ok=False)
                time.sleep(3600)
        return super().client_update(received, client, task)


class Federation:
    """Processes on this machine, each of which can be killed and started again."""

    def __init__(self, here: Local, children: Children) -> None:
        self.here = here
        self.children = children

    def start_superlink(self) -> None:
        # With a database: started again, it knows its nodes again.
        command = [*self.here.superlink(), "--database", str(self.here.folder / "state.db")]
        self.superlink = self.children.start("superlink", command, self.here.log("superlink"))
        wait(lambda: listens(self.here.ports[0]), "the SuperLink")

    def start_node(self, number: int) -> Child:
        name = f"node-{number}"
        return self.children.start(name, self.here.node(number), self.here.log(name))

    def start_run(self) -> None:
        self.children.start("flwr", self.here.run(), self.here.log("flwr"))

    def rows(self) -> list[Row]:
        return whole_rows(self.here.run_folder)

    def until_rounds(self, count: int) -> None:
        wait(lambda: len(self.rows()) >= count, f"round {count}")


class Stopwatch:
    """Seconds since something was killed, to a tenth."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def until(self, true: Callable[[], bool], what: str) -> float:
        wait(true, what)
        return self.now()

    def now(self) -> float:
        return round(time.monotonic() - self._began, 1)


def kill_node(there: Federation, nodes: list[Child], mark: Path) -> Row:
    wait(mark.exists, "the victim at work")
    number = len(there.rows()) + 1
    watch = Stopwatch()
    kill(nodes[VICTIM])
    nodes[VICTIM] = there.start_node(VICTIM)
    ended = watch.until(lambda: len(there.rows()) >= number, "the end of the round without it")
    back = watch.until(lambda: full_round(there, number), "a round with the victim in it")
    return {
        "in_round": number,
        "seconds_until_the_round_ended_without_it": ended,
        "seconds_until_a_round_with_it_ended": back,
    }


def full_round(there: Federation, after: int) -> bool:
    return any(row["replied"] == NODES for row in there.rows()[after:])


def kill_serverapp(there: Federation) -> Row:
    (serverapp,) = serverapps()
    watch = Stopwatch()
    serverapp.kill()
    done = len(there.rows())
    there.start_run()
    ended = watch.until(lambda: len(there.rows()) > done, "a round of the new ServerApp")
    return {"after_round": done, "seconds_until_the_next_round_ended": ended}


def kill_superlink(there: Federation) -> Row:
    apps = {app.pid for app in serverapps()}
    watch = Stopwatch()
    kill(there.superlink)
    # Until the ServerApp has noticed, the run is its own.
    noticed = watch.until(lambda: apps.isdisjoint(descendants()), "the ServerApp's end")
    done = len(there.rows())
    there.start_superlink()
    listening = watch.now()
    there.start_run()
    ended = watch.until(lambda: len(there.rows()) > done, "a round over the new SuperLink")
    return {
        "after_round": done,
        "seconds_until_its_serverapp_had_ended": noticed,
        "seconds_until_it_listened_again": listening,
        "seconds_until_the_next_round_ended": ended,
    }


def kill(child: Child) -> None:
    child.process.kill()
    child.process.wait()


def replayed(plan: Plan, found: list[Row], store: Path) -> list[str]:
    """The weights after each round in one process, from the replies that the round had."""
    for row in found:
        if row["sampled"] < NODES:  # only the victim is ever away
            row["failures"][str(VICTIM)] = "it was not there"
    simulation = simulate(plan)
    server = simulation.server(Replayed(simulation.serial(torch.device("cpu"), store), found))
    weights = []
    for _ in found:
        server.step()
        weights.append(fingerprint(server.params))
    return weights


def run(folder: Path, deadline: float) -> Row:
    settings = [*SETTINGS, "rounds=100000", f"deadline={deadline:g}"]
    plan = split_plan("quickstart", settings, NODES)
    here = Local(folder, NODES, tls=False, ports=free_ports(1 + NODES))
    here.prepare({"config": "quickstart", "overrides": overrides_of([*settings, *HELD], plan)})
    write_shards(plan, [here.data(node) for node in range(NODES)])
    mark = folder / "at-work"
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**here.environment(), "PYTHONPATH": path, MARK: str(mark)}
    with Children(environment) as children:
        there = Federation(here, children)
        there.start_superlink()
        nodes = [there.start_node(number) for number in range(NODES)]
        there.start_run()
        killed = {"node": kill_node(there, nodes, mark)}
        there.until_rounds(len(there.rows()) + 1)
        killed["ServerApp"] = kill_serverapp(there)
        there.until_rounds(len(there.rows()) + 1)
        killed["SuperLink"] = kill_superlink(there)
        there.until_rounds(len(there.rows()) + 1)
    found = there.rows()
    weights = replayed(plan, found, folder / "alone")
    usual = [row["seconds"] for row in found[1:] if row["replied"] == NODES]
    return {
        "equal": weights == [row["weights"] for row in found],
        "final_weights": found[-1]["weights"],
        "final_weights_of_one_process": weights[-1],
        "median_seconds_of_a_round": round(statistics.median(usual), 1),
        "killed": killed,
        "rounds": [
            {name: row[name] for name in ("round", "sampled", "replied", "failures", "weights")}
            for row in found
        ],
        "settings": settings,
        "flwr": version("flwr"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--deadline", type=float, default=30.0, help="of a round (default: 30)")
    options.add_argument("--write", type=Path, metavar="FILE")
    args = options.parse_args()
    found = run(args.out.absolute(), args.deadline)
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if args.write:
        args.write.write_text(text)
    return 0 if found["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
