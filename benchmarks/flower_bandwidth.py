"""Three nodes on links of 0.2, 1 and 10 MB/s: what the bandwidth policy gives them, and when.

    python benchmarks/flower_bandwidth.py OUT [--rounds 6] [--write FILE]

A real SuperLink and real SuperNodes, each behind a proxy of this machine that lets so many bytes a
second through, each way. The links are unknown to the run: its first estimate is the slowest, then
it goes by what it measures. The model has many weights, is quick to train, and travels down at half
a bit a weight, so that it is the way up that takes the time; what it learns is not the point.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from torch import nn

from fedwsq.flower.children import Children
from fedwsq.flower.local import HERE, Local, free_ports, listens
from fedwsq.flower.shards import write_shards
from fedwsq.plan import load_plan
from script import Row, parser, rows

LINKS = (0.2e6, 1e6, 10e6)  # bytes a second, each way
PIECE = 16_384
WIDTH = 4000  # 16.3 million weights
GRANT_SECONDS = 21  # that the policy counts with
DEADLINE_SECONDS = 29  # when a round ends, whoever is missing: Flower's waiting is in between
SETTINGS = [
    "model.name=flower_bandwidth:perceptron",
    "model.standardize=none",
    "training.epochs=1",
    "training.batches_per_epoch=1",
    "uplink.codec=ecq",
    "uplink.select=weights",
    "uplink.bits=bandwidth",
    "uplink.bits.choices=[0.25,0.5,1,2,4,8]",
    f"uplink.bits.deadline_seconds={GRANT_SECONDS}",
    f"deadline={DEADLINE_SECONDS}",
    "downlink.codec=ecq",
    "downlink.select=weights",
    "downlink.bits=0.5",
    "channels=measured",
    f"channels.up_bytes_per_second={LINKS[0]}",
    f"channels.down_bytes_per_second={LINKS[0]}",
]


def perceptron(classes: int, channels: int) -> nn.Module:
    """For the 8x8 images of the digits."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64 * channels, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, classes),
    )


class Link:
    """One direction: bytes leave one after the other, however many connections they are of."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.free_at = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(PIECE):
                begins = max(self.free_at, time.monotonic())
                self.free_at = begins + len(piece) / self.bytes_per_second
                await asyncio.sleep(self.free_at - time.monotonic())
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass  # one end is gone, and so is this connection
        finally:
            writer.close()


def start_proxy(port: int, target: int, bytes_per_second: float) -> None:
    """Let others reach `target` through `port`, at so many bytes a second each way."""
    up = Link(bytes_per_second)
    down = Link(bytes_per_second)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_link, to_link = await asyncio.open_connection(HERE, target)
        except OSError:  # the SuperLink has ended
            writer.close()
            return
        await asyncio.gather(up.carry(reader, to_link), down.carry(from_link, writer))

    async def serve() -> None:
        server = await asyncio.start_server(connect, HERE, port, limit=PIECE)
        await server.serve_forever()

    Thread(target=lambda: asyncio.run(serve()), daemon=True).start()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--write", type=Path)
    args = options.parse_args()
    began = time.monotonic()
    deploy(args)
    found = report(rows(args.out / "run"), time.monotonic() - began)
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if args.write:
        args.write.write_text(text)


def deploy(args: argparse.Namespace) -> None:
    """A run to its end, on a SuperLink and nodes of this machine."""
    nodes = len(LINKS)
    here = Local(args.out.absolute(), nodes, False, free_ports(1 + nodes))
    cohort = [f"clients_per_round={nodes}", f"rounds={args.rounds}"]
    words = [*SETTINGS, *cohort]
    own = [*words, f"data.clients={nodes}", "data.partition=own"]
    here.prepare({"config": "quickstart", "overrides": " ".join(own)})
    # Few examples each: it is not training that is to take the time.
    plan = load_plan("quickstart", [*words, "data.clients=20", "data.partition=iid"])
    write_shards(plan, [here.data(node) for node in range(nodes)])
    proxies = free_ports(nodes)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    with Children({**here.environment(), "PYTHONPATH": path}) as children:
        children.start("superlink", here.superlink(), here.log("superlink"))
        wait(lambda: listens(here.ports[0]))
        for node, port in enumerate(proxies):
            start_proxy(port, here.ports[0], LINKS[node])
            command = [word.replace(here.address, f"{HERE}:{port}") for word in here.node(node)]
            children.start(f"node-{node}", command, here.log(f"node-{node}"))
        run = children.start("flwr", here.run(), here.log("flwr"))
        wait(lambda: run.ended)


def wait(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.1)


def report(rounds: list[Row], seconds: float) -> dict[str, object]:
    """What the rows say, by round and client."""
    return {
        "links_bytes_per_second": LINKS,
        "policy_seconds": GRANT_SECONDS,
        "deadline_seconds": DEADLINE_SECONDS,
        "settings": SETTINGS,
        "whole_seconds": round(seconds),
        "rounds": [
            {
                "round": row["round"],
                "seconds": round(row["seconds"] - row["eval_seconds"], 1),
                "replied": row["replied"],
                "late": row["late"],
                "sat_out": row["sat_out"],
                "bits": row["client_bits"] or row["bits"],
                "uplink_bytes": row["uplink_bytes"],
                "up_bytes_per_second": [round(each[0]) for each in row["channels"].values()],
                "down_bytes_per_second": [round(each[1]) for each in row["channels"].values()],
                "latency_seconds": [round(each[2], 2) for each in row["channels"].values()],
                "seconds_per_step": [round(each[3], 2) for each in row["channels"].values()],
            }
            for row in rounds
        ],
    }


if __name__ == "__main__":
    main()
