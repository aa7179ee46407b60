"""What the two lines of fedwsq save in an app of Flower's: a real SuperLink, real SuperNodes.

    python benchmarks/flower_quickstart.py [--nodes N] [--rounds N] [--write FILE] [UP:DOWN ...]

UP:DOWN are bits a weight, 0 for float32; the first case is what the others are compared with.
Traffic is what the SuperLink counts (`flwr list`), headers and evaluation included; accuracy is the
server's, after the last round. Everything that it starts ends with it.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedwsq.flower.children import Child, Children
from fedwsq.flower.local import SETTINGS, free_ports, listens

ROOT = Path(__file__).parents[1]
APP = ROOT / "examples" / "flower_quickstart"
CASES = ["0:0", "4:0", "1:0", "0:4", "4:4", "1:4", "1:1"]
START_SECONDS = 300.0


class Traffic(NamedTuple):
    """Bytes that nodes sent up and were sent down, and the accuracy that this bought."""

    up: int
    down: int
    accuracy: float


class Federation:
    """A SuperLink and nodes of this machine, each with its share of the digits."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = nodes
        self.ports = free_ports(1 + nodes)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, **SETTINGS, "FLWR_HOME": str(folder), "PATH": path}
        # More processes than cores as it is.
        self.environment["OMP_NUM_THREADS"] = "1"
        self.environment["PYTHONPATH"] = str(ROOT / "src")
        (folder / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.ports[0]}"\ninsecure = true\n'
        )

    def start(self, children: Children) -> None:
        link = ["flower-superlink", "--insecure", "--port", str(self.ports[0])]
        started = children.start("superlink", link, self.folder / "superlink.log")
        self._wait(started)
        for number in range(self.nodes):
            name = f"node-{number}"
            words = ["flower-supernode", "--insecure", "--port", str(self.ports[1 + number])]
            words += ["--superlink", f"127.0.0.1:{self.ports[0]}"]
            words += ["--node-config", f"partition-id={number} num-partitions={self.nodes}"]
            children.start(name, words, self.folder / f"{name}.log")

    def run(self, up: float, down: float, rounds: int) -> Traffic:
        config = f"num-server-rounds={rounds} num-nodes={self.nodes} bits={up} down-bits={down}"
        printed = self._flwr("run", str(APP), "here", "--stream", "-c", config)
        # The last run comes first.
        found = json.loads(self._flwr("list", "here", "--format", "json"))["runs"][0]
        scores = re.findall(r"'test-accuracy': ([0-9.]+)", printed)
        if found["status"] != "finished:completed" or " 0 failures" not in printed:
            raise SystemExit(printed)
        traffic = found["network-traffic"]
        return Traffic(traffic["inbound-bytes"], traffic["outbound-bytes"], float(scores[-1]))

    def _flwr(self, *words: str) -> str:
        command = ["flwr", *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return done.stdout

    def _wait(self, link: Child) -> None:
        end = time.monotonic() + START_SECONDS
        while not listens(self.ports[0]):
            if link.ended or time.monotonic() > end:
                raise SystemExit(f"the SuperLink does not listen:\n{link.last_lines()}")
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=CASES, metavar="UP:DOWN")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()

    # A polite kill ends everything, too; and Ctrl-C does so in a job of the background.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder), args.nodes)
        with Children(federation.environment) as children:
            federation.start(children)
            lines = []
            for line in report(federation, args.cases, args.rounds):
                print(line, flush=True)
                lines.append(line)
    if args.write:
        args.write.write_text("\n".join(lines) + "\n")


def report(federation: Federation, cases: list[str], rounds: int) -> Iterator[str]:
    """A table, line by line."""
    yield "| bits up | bits down | bytes up | fewer | bytes down | fewer | accuracy |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    first = None
    for case in cases:
        up, down = map(float, case.split(":"))
        found = federation.run(up, down, rounds)
        first = first or found
        fewer_up = first.up / found.up
        fewer_down = first.down / found.down
        row = [f"{up or 32:g}", f"{down or 32:g}", f"{found.up:,}", f"{fewer_up:.1f}"]
        row += [f"{found.down:,}", f"{fewer_down:.1f}", f"{found.accuracy:.3f}"]
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
