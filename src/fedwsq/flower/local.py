"""A federation on this machine, of the same processes as one on many: files and commands."""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from fedwsq.core.errors import ConfigError
from fedwsq.flower.certificates import (
    AUTHORITY,
    SERVER,
    SERVER_KEY,
    write_certificates,
    write_node_key,
)

CONNECTION = "deploy"  # the SuperLink's name in Flower's configuration
HERE = "127.0.0.1"
RUN_CONFIG = "run.toml"
CERTIFICATE_DAYS = 30
# What every process of it is told.
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # What an app needs is installed already, and there may be no network.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # How often Flower looks whether there is a process to start.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    # Bytes of a piece. For one that is still on its way Flower looks again after 1, 2, 4, 8 s, so
    # that the end of a long one could not be told.
    "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": "262144",
}
# The keys of a run config must be in the app before `flwr run` can set them.
APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedwsq-app"
version = "0.1.0"
description = "A federation of fedwsq"
license = "Apache-2.0"
dependencies = ["fedwsq[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["fedwsq_app"]

[tool.flwr.app]
publisher = "fedwsq"

[tool.flwr.app.components]
serverapp = "fedwsq_app.server:app"
clientapp = "fedwsq_app.client:app"

[tool.flwr.app.config]
config = "quickstart"
method = ""
bits = 0
rounds = 0
overrides = ""
out = ""
test-data = ""
classes = 0
class-names = ""
shape = ""
"""
ENDS = {
    "__init__": '"""fedwsq as a Flower app."""\n',
    "server": "from fedwsq.flower.server import server_app\n\napp = server_app()\n",
    "client": "from fedwsq.flower.client import client_app\n\napp = client_app()\n",
}


@dataclass(frozen=True)
class Local:
    """Where the files of a local federation are, and the commands that start its processes."""

    folder: Path
    nodes: int
    tls: bool
    ports: Sequence[int]  # the SuperLink's, then each node's
    simulation: bool = False  # nodes are Ray's, inside of the SuperLink

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    @property
    def address(self) -> str:
        return f"{HERE}:{self.ports[0]}"

    @property
    def settings(self) -> dict[str, str]:
        """The environment of every process, besides what there is."""
        return {"FLWR_HOME": str(self.folder / "flower"), **SETTINGS}

    def environment(self) -> dict[str, str]:
        # Flower starts programs by their names.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {**os.environ, **self.settings, "PATH": path}

    # The commands.

    def superlink(self) -> list[str]:
        words = ["flower-superlink", "--host", HERE, "--port", str(self.ports[0])]
        if self.simulation:
            return [*words, "--insecure", "--simulation"]
        if not self.tls:
            return [*words, "--insecure"]
        certificates = self.folder / "certs"
        words += ["--ssl-ca-certfile", str(certificates / AUTHORITY)]
        words += ["--ssl-certfile", str(certificates / SERVER)]
        words += ["--ssl-keyfile", str(certificates / SERVER_KEY)]
        return [*words, "--enable-supernode-auth"]

    def register(self, node: int) -> list[str]:
        """Let a node in; only with TLS are nodes asked who they are."""
        return ["flwr", "supernode", "register", f"{self._key(node)}.pub", CONNECTION]

    def node(self, node: int) -> list[str]:
        words = ["flower-supernode", "--superlink", self.address]
        words += ["--port", str(self.ports[1 + node])]
        if self.tls:
            words += ["--root-certificates", str(self.folder / "certs" / AUTHORITY)]
            words += ["--auth-supernode-private-key", str(self._key(node))]
        else:
            words.append("--insecure")
        config: dict[str, str | int] = {"client": node, "data": str(self.data(node))}
        config["memory"] = str(self._home(node) / "memory")
        keys = self.keys / f"client-{node}"
        if keys.exists():
            config["keys"] = str(keys)
        return [*words, "--node-config", config_text(config)]

    def run(self) -> list[str]:
        app = str(self.folder / "app")
        words = ["flwr", "run", app, CONNECTION, "--stream", "-c", str(self.folder / RUN_CONFIG)]
        if self.simulation:
            return [*words, "--federation-config", f"num-supernodes={self.nodes}"]
        return words

    def data(self, node: int) -> Path:
        """The examples of one node; nobody else looks there."""
        return self._home(node) / "data.npz"

    @property
    def keys(self) -> Path:
        """Those of secure sums, a folder for each node."""
        return self.folder / "keys"

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    # The files.

    def prepare(self, config: Mapping[str, str]) -> None:
        """Everything that the commands need but the examples."""
        for name in ("logs", "flower", "app/fedwsq_app"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "app" / "pyproject.toml").write_text(APP)
        for name, text in ENDS.items():
            (self.folder / "app" / "fedwsq_app" / f"{name}.py").write_text(text)
        if self.tls:
            write_certificates(self.folder / "certs", [], CERTIFICATE_DAYS)
            for node in range(self.nodes):
                write_node_key(self._key(node))
        (self.folder / "flower" / "config.toml").write_text(self._connection())
        # As a file: on a command line Flower takes no value with quotes of both kinds.
        whole = {**config, "test-data": "plan", "out": str(self.run_folder)}
        (self.folder / RUN_CONFIG).write_bytes(tomli_w.dumps(whole).encode())
        for node in range(self.nodes):
            self.data(node).parent.mkdir(parents=True, exist_ok=True)

    def _connection(self) -> str:
        trust = "insecure = true"
        if self.tls:
            trust = f"root-certificates = {json.dumps(str(self.folder / 'certs' / AUTHORITY))}"
        return (
            f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n"
            f"[superlink.{CONNECTION}]\naddress = {json.dumps(self.address)}\n{trust}\n"
        )

    def _home(self, node: int) -> Path:
        return self.folder / "nodes" / str(node)

    def _key(self, node: int) -> Path:
        return self._home(node) / "key"


def config_text(config: Mapping[str, str | int]) -> str:
    """`name='value'` words, as Flower reads a node's config."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in config.items())


def _quoted(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    # Flower knows no escapes: a quote ends a value.
    if "'" in value:
        raise ConfigError(f"{value} has a quote in it, which Flower cannot be told; rename it")
    return f"'{value}'"


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at, all different."""
    sockets = [socket.create_server((HERE, 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def listens(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex((HERE, port)) == 0
