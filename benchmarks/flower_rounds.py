"""Rounds on a local deployment of Flower: how long they take, why, and what really crossed.

    python benchmarks/flower_rounds.py OUT [--nodes 3] [--rounds 6] [--write FILE]

Three models, the first two with a process that stays up beside each node and without. The first
round is left out of times: it starts processes. Times are medians of the others; `way` is what even
a message of no bytes takes there and back (an idle SuperNode sleeps for 3 s, then a process
starts), `work` what the node's process takes from then on, `train` the part of it that is training.
Bytes are all rounds', as the rows have them and as the SuperLink counted them.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from fedwsq.flower.children import Children
from fedwsq.flower.local import Local, free_ports, listens
from fedwsq.flower.shards import write_shards
from fedwsq.plan import load_plan
from script import Row, parser, report, rows, total

LITTLE = "training.epochs=1 training.batches_per_epoch=1 channels=measured"
CASES = {
    "no-op": "uplink.bits=4",
    "resnet8": "model.name=resnet8 uplink.bits=4",
    "resnet18, float32": "model.name=resnet18 uplink.codec=float32",
    "resnet18, 4 bits": "model.name=resnet18 uplink.bits=4 downlink.codec=danuq downlink.bits=4",
    "resnet18, 1 bit": "model.name=resnet18 uplink.bits=1 downlink.codec=danuq downlink.bits=1",
}
TIMED = ("no-op", "resnet8")
ROUNDS_OF_OTHERS = 2  # where bytes are the point
HEAD = (
    "| round | warm | seconds | way | work | train | up, bytes | counted | more "
    "| down, bytes | counted | more |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--nodes", type=int, default=3)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--write", type=Path)
    args = options.parse_args()
    lines = []
    for name in args.cases:
        timed = name in TIMED
        rounds = args.rounds if timed else ROUNDS_OF_OTHERS
        # Cold and warm differ in time alone.
        for warm in (False, True) if timed else (True,):
            folder = args.out.absolute() / f"{name.replace(', ', '-').replace(' ', '')}-{warm}"
            traffic = deploy(folder, args.nodes, f"{CASES[name]} rounds={rounds}", warm)
            lines.append(line(name, warm, rows(folder / "run"), traffic))
            print(lines[-1], flush=True)
    report(HEAD + "\n".join(lines) + "\n", args.write)


def deploy(folder: Path, nodes: int, words: str, warm: bool) -> dict[str, int]:
    """A run on nodes of this machine: the bytes that its SuperLink counted."""
    here = Local(folder, nodes, False, free_ports(1 + nodes))
    cohort = f"data.clients={nodes} clients_per_round={nodes}"
    common = f"{words} {LITTLE} {cohort}"
    plan = load_plan("quickstart", f"{common} data.partition=iid".split())
    here.prepare({"config": "quickstart", "overrides": f"{common} data.partition=own"})
    write_shards(plan, [here.data(node) for node in range(nodes)])
    with Children(here.environment()) as children:
        children.start("superlink", here.superlink(), here.log("superlink"))
        wait(lambda: listens(here.ports[0]))
        for node in range(nodes):
            *command, config = here.node(node)
            said = f"{config} warm={str(warm).lower()}"
            children.start(f"node-{node}", [*command, said], here.log(f"node-{node}"))
        run = children.start("flwr", here.run(), here.log("flwr"))
        wait(lambda: run.ended)
        command = ["flwr", "list", here.run()[3], "--limit", "1", "--format", "json"]
        listed = subprocess.run(command, env=here.environment(), capture_output=True, check=True)
    found: dict[str, int] = json.loads(listed.stdout)["runs"][0]["network-traffic"]
    return found


def wait(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.1)


def line(name: str, warm: bool, rounds: list[Row], traffic: dict[str, int]) -> str:
    later = rounds[1:]
    middle = lambda values: f"{statistics.median(values):.2f}"
    channels = [channel for row in later for channel in row["channels"].values()]
    cells = [
        name,
        "yes" if warm else "no",
        middle(row["seconds"] - row["eval_seconds"] for row in later),
        middle(2 * latency for _, _, latency, _ in channels),
        middle(step for _, _, _, step in channels),
        middle(row["train_seconds"] / row["replied"] for row in later),
        *against(total(rounds, "uplink_bytes"), traffic["inbound-bytes"]),
        *against(total(rounds, "downlink_bytes"), traffic["outbound-bytes"]),
    ]
    return f"| {' | '.join(cells)} |"


def against(ours: float, counted: float) -> list[str]:
    return [f"{ours:,.0f}", f"{counted:,.0f}", f"{100 * (counted / ours - 1):.2f} %"]


if __name__ == "__main__":
    main()
