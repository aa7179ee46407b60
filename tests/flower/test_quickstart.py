"""The example with the two lines, through a real SuperLink and real SuperNodes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedwsq.flower.children import Children
from fedwsq.flower.local import SETTINGS, free_ports, listens

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower_quickstart"
WAIT_SECONDS = 600


class Federation:
    """A SuperLink with two nodes."""

    def __init__(self, folder, children, environment):
        self.folder = folder
        self.environment = environment
        link, *nodes = free_ports(3)
        (folder / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
        )
        words = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(link)]
        children.start("superlink", words, folder / "superlink.log")
        end = time.monotonic() + WAIT_SECONDS
        while not listens(link):
            assert time.monotonic() < end
            time.sleep(0.1)
        for number, port in enumerate(nodes):
            words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}"]
            words += ["--port", str(port)]
            words += ["--node-config", f"partition-id={number} num-partitions=2"]
            children.start(f"node-{number}", words, folder / f"node-{number}.log")

    def flwr(self, *words):
        done = subprocess.run(
            ["flwr", *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=True,
        )
        return done.stdout

    def traffic(self, config):
        """What a run sent up and down, as the SuperLink counts it, and what it printed."""
        printed = self.flwr("run", str(APP), "here", "--stream", "-c", config)
        # The last run comes first.
        run = json.loads(self.flwr("list", "here", "--format", "json"))["runs"][0]
        assert run["status"] == "finished:completed", printed
        traffic = run["network-traffic"]
        return traffic["inbound-bytes"], traffic["outbound-bytes"], printed


def test_two_lines_and_the_traffic_falls(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **SETTINGS, "FLWR_HOME": str(tmp_path), "PATH": path}
    environment["PYTHONPATH"] = str(ROOT / "src")
    environment["OMP_NUM_THREADS"] = "1"  # more processes than cores as it is
    common = "num-nodes=2 num-server-rounds=1"
    with Children(environment) as children:
        federation = Federation(tmp_path, children, environment)
        up, down, printed = federation.traffic(f"{common} bits=0.0 down-bits=0.0")
        few_up, few_down, also_printed = federation.traffic(f"{common} bits=1.0 down-bits=4.0")
        everything = psutil.Process().children(recursive=True)
    for text in (printed, also_printed):
        assert "aggregate_train: Received 2 results and 0 failures" in text
        assert "aggregate_evaluate: Received 2 results and 0 failures" in text
    assert up > 25 * few_up
    assert down > 7 * few_down
    assert everything
    assert not any(process.is_running() for process in everything)
