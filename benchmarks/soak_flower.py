"""A federation on Flower whose processes are killed and stopped, judged round by round.

    python benchmarks/soak_flower.py --minutes 20 --json benchmarks/results/soak_flower.json

A real SuperLink and three SuperNodes on loopback, each with its own examples; FedAvg with DANUQ at
2 bits and error feedback. Every few seconds a node is killed or stopped for a while, or the
ServerApp, or the SuperLink; what died is started again. At the end every round is worked out anew
in one process, in which those clients fail whose replies the round did not have: its weights must
be the same, bit for bit. Processes and what nodes keep on disk must not grow, and nothing may be
left of them. Exit code 1 if any of that does not hold.
"""

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

from fedwsq.cli.work.deploy_local import overrides_of, split_plan
from fedwsq.core.tree import fingerprint
from fedwsq.federation.simulation import simulate
from fedwsq.flower.children import Child, Children, descendants
from fedwsq.flower.local import Local, free_ports, listens
from fedwsq.flower.shards import write_shards
from fedwsq.plan import Plan
from fedwsq.transports import Answer, Failure, Order, Transport
from script import Row, parser

NODES = 3
SETTINGS = [
    "rounds=100000",
    "deadline=30",
    "eval_every=1000",
    "training.epochs=1",
    "training.batches_per_epoch=2",
    "uplink.bits=2",
    "uplink.error_feedback=true",
]
FAULTS = {
    "node killed": 0.4,
    "node stopped for a while": 0.25,
    "ServerApp killed": 0.2,
    "SuperLink killed": 0.15,
}
PAUSE_SECONDS = (10.0, 40.0)  # between two faults
STOPPED_SECONDS = 15.0
START_SECONDS = 1800.0  # a busy machine is no failure
MOST_MORE_PROCESSES = 6  # Flower starts one for every task, and they overlap


class Failed(Exception):
    """What the soak is there to find."""


@dataclass
class Soak:
    """The processes of one federation, and what was done to them."""

    here: Local
    children: Children
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    faults: Counter[str] = field(default_factory=Counter)
    processes: list[int] = field(default_factory=list)
    kept_bytes: list[int] = field(default_factory=list)

    def go(self, minutes: float) -> None:
        self._start_superlink()
        self.nodes = [self._start_node(number) for number in range(NODES)]
        self._start_run()
        self._wait_for_rounds(2)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            (what,) = self.dice.choices(list(FAULTS), list(FAULTS.values()))
            self._cause(what)
            self.faults[what] += 1
            time.sleep(self.dice.uniform(*PAUSE_SECONDS))
            done = self._wait_for_rounds(len(self._rows()) + 2)
            self.processes.append(len(descendants()))
            self.kept_bytes.append(_size(self.here.folder / "nodes"))
            print(f"{dict(self.faults)}, {done} rounds, {self.processes[-1]} processes", flush=True)

    def _cause(self, what: str) -> None:
        number = self.dice.randrange(NODES)
        node = self.nodes[number].process
        if what == "node killed":
            node.kill()
            node.wait()
            self.nodes[number] = self._start_node(number)
        elif what == "node stopped for a while":
            stopped = [psutil.Process(node.pid), *psutil.Process(node.pid).children(True)]
            _each(stopped, psutil.Process.suspend)
            time.sleep(STOPPED_SECONDS)
            _each(stopped, psutil.Process.resume)
        elif what == "ServerApp killed":
            _each(serverapps(), psutil.Process.kill)
            self._start_run()
        else:
            apps = {app.pid for app in serverapps()}
            self.superlink.process.kill()
            self.superlink.process.wait()
            # Until it has noticed, the run is its own. Looking lets go of those that have ended,
            # which it would take for alive.
            wait(lambda: apps.isdisjoint(descendants()), "the ServerApp's end")
            self._start_superlink()
            self._start_run()

    def _start_superlink(self) -> None:
        # Its nodes are known to it when it comes back.
        words = [*self.here.superlink(), "--database", str(self.here.folder / "state.db")]
        self.superlink = self._start("superlink", words)
        wait(lambda: listens(self.here.ports[0]), "the SuperLink")

    def _start_node(self, number: int) -> Child:
        return self._start(f"node-{number}", self.here.node(number))

    def _start_run(self) -> None:
        self._start("flwr", self.here.run())

    def _start(self, name: str, words: Sequence[str]) -> Child:
        return self.children.start(name, words, self.here.log(name))

    def _rows(self) -> list[Row]:
        return whole_rows(self.here.run_folder)

    def _wait_for_rounds(self, count: int) -> int:
        wait(lambda: len(self._rows()) >= count, f"round {count}")
        return len(self._rows())


class Replayed:
    """The clients of one process, of whom those whose replies a run did not have fail again."""

    def __init__(self, inner: Transport, found: Sequence[Mapping[str, Any]]) -> None:
        self.inner = inner
        self.failures = {row["round"]: row["failures"] for row in found}

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        for answer in self.inner.dispatch(body, orders, deadline):
            why = self.failures[answer.key.round].get(str(answer.key.client))
            yield answer if why is None else Failure(answer.key, why)

    def close(self) -> None:
        self.inner.close()


def judge(plan: Plan, found: Sequence[Row], store: Path) -> None:
    """Every round again, from the replies that it had."""
    if [row["round"] for row in found] != list(range(1, len(found) + 1)):
        raise Failed("rows are missing or twice there")
    simulation = simulate(plan)
    server = simulation.server(Replayed(simulation.serial(torch.device("cpu"), store), found))
    for row in found:
        server.step()
        if fingerprint(server.params) != row["weights"]:
            raise Failed(f"round {row['round']}: weights are not those of the accepted replies")


def require_no_growth(soak: Soak) -> None:
    if max(soak.processes) > soak.processes[0] + MOST_MORE_PROCESSES:
        raise Failed(f"processes grew: {soak.processes}")
    half = len(soak.kept_bytes) // 2
    if half and max(soak.kept_bytes[half:]) > 1.2 * max(soak.kept_bytes[:half]):
        raise Failed(f"what nodes keep grew: {soak.kept_bytes}")


def whole_rows(folder: Path) -> list[Row]:
    """Those that are written to their end, if there are any yet."""
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def serverapps() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any("flwr-serverapp" in word for word in process.cmdline()):
                found.append(process)
    return found


def _each(processes: Sequence[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            do(process)


def wait(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not true():
        if time.monotonic() > end:
            raise Failed(f"waited {START_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.2)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def summary(soak: Soak, found: Sequence[Row]) -> Row:
    counted = {what: sum(row[what] for row in found) for what in ("replied", "failed", "late")}
    return {
        "rounds_judged": len(found),
        "faults": dict(soak.faults),
        "rows_say": counted | {"asked_again": sum(len(row["asked_again"]) for row in found)},
        "processes": [min(soak.processes), max(soak.processes)],
        "kilobytes_kept_by_nodes": [min(soak.kept_bytes) / 1e3, max(soak.kept_bytes) / 1e3],
    }


def run(folder: Path, args: argparse.Namespace) -> int:
    plan = split_plan("quickstart", SETTINGS, NODES)
    here = Local(folder, NODES, tls=False, ports=free_ports(1 + NODES))
    here.prepare({"config": "quickstart", "overrides": overrides_of(SETTINGS, plan)})
    write_shards(plan, [here.data(node) for node in range(NODES)])
    began = time.time()
    verdict = "all rounds right, nothing grows, nothing left"
    with Children(here.environment()) as children:
        soak = Soak(here, children)
        try:
            soak.go(args.minutes)
        except Failed as failed:
            verdict = str(failed)
    minutes = (time.time() - began) / 60
    found = whole_rows(here.run_folder)
    try:
        judge(plan, found, folder / "alone")
        require_no_growth(soak)
    except Failed as failed:
        verdict = str(failed)
    result = {
        "verdict": verdict,
        "minutes": round(minutes, 1),
        **summary(soak, found),
        "settings": SETTINGS,
        "rates": FAULTS,
        "flwr": version("flwr"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 0 if verdict.startswith("all rounds right") else 1


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--json", type=Path, metavar="FILE")
    args = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        return run(Path(scratch), args)


if __name__ == "__main__":
    sys.exit(main())
