"""A real deployment on loopback: a SuperLink, SuperNodes and `flwr run`, each its own process."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from fedwsq.flower.certificates import write_certificates, write_node_key
from harness import PATIENCE_SECONDS, TESTS, gone, wait_until

APP = TESTS.parent / "examples" / "flower"
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # Five processes that ask five times a second are felt on a busy machine.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
}


class Deployment:
    """Processes of one federation; leaving it ends all of them."""

    def __init__(self, folder, tls=False, **environment):
        self.folder = folder
        self.tls = tls
        self.port = free_port()
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            **QUIET,
            **environment,
            "FLWR_HOME": str(self.home),
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
        }
        self.started = []
        if tls:
            write_certificates(folder, [], 1)
        where = "insecure = true"
        if tls:
            where = f'root-certificates = "{folder / "ca.crt"}"'
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{where}\n'
        )

    def superlink(self):
        words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        # Started again it knows its nodes again, which would leave it otherwise.
        words += ["--database", self.folder / "state.db"]
        if self.tls:
            words += ["--ssl-ca-certfile", self.folder / "ca.crt"]
            words += ["--ssl-certfile", self.folder / "server.pem"]
            words += ["--ssl-keyfile", self.folder / "server.key", "--enable-supernode-auth"]
        else:
            words.append("--insecure")
        process = self._start("superlink", words)
        wait_until(lambda: listens(self.port), process)
        return process

    def supernode(self, name, register=True, trusting=True, **config):
        """A node with a folder of its own, registered unless told otherwise."""
        words = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        words += ["--port", str(free_port())]
        if self.tls:
            words += ["--auth-supernode-private-key", self._key(name, register)]
            if trusting:
                words += ["--root-certificates", self.folder / "ca.crt"]
        else:
            words.append("--insecure")
        said = " ".join(f"{key.replace('_', '-')}={json.dumps(x)}" for key, x in config.items())
        return self._start(name, [*words, "--node-config", said])

    def deploy_node(self, name, client, data, ca="ca.crt"):
        """A registered node as `fedwsq deploy node` starts it."""
        words = ["python", "-m", "fedwsq", "deploy", "node", "--client", client, "--data", data]
        words += ["--superlink", f"127.0.0.1:{self.port}", "--port", free_port()]
        words += ["--ca", self.folder / ca, "--key", self._key(name)]
        return self._start(name, words)

    def flwr(self, *words):
        """A command that ends by itself: what it printed."""
        done = subprocess.run(
            [BIN / "flwr", *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begin(self, **config):
        """Hand a run to the SuperLink: its number."""
        said = " ".join(f"{key.replace('_', '-')}={json.dumps(x)}" for key, x in config.items())
        output = self.flwr("run", APP, "here", "-c", said, "--format", "json")
        return json.loads(output)["run-id"]

    def of_run(self, number):
        output = self.flwr("list", "here", "--run-id", number, "--format", "json")
        return json.loads(output)["runs"][0]

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def until_it_says(self, name, words):
        """Wait for a process to have printed something."""
        patiently(lambda: words in self.log(name), lambda: f"{name}: {self.log(name)}")

    def run(self, **config):
        """A run to its end."""
        number = self.begin(**config)
        finished = re.compile(rf"Finished task \d+ of run {number}")
        last_words = lambda: self.log("superlink")[-2000:]
        patiently(lambda: finished.search(self.log("superlink")), last_words)
        assert "completed" in self.of_run(number)["status"], self.server_log(number)
        return number

    def server_log(self, number):
        return self.flwr("log", number, "here", "--show")

    def serverapp(self):
        """The process that runs the server's end of the run that is going."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("flwr-serverapp" in word for word in process.cmdline()):
                    found.append(process)
        (alive,) = [process for process in found if not gone(process)]
        return alive

    def processes(self):
        """All that came of what was started, as far as it is still there."""
        found = {}
        for process in self.started:
            if process.poll() is None:
                parent = psutil.Process(process.pid)
                for each in (parent, *parent.children(recursive=True)):
                    found[each.pid] = each
        return list(found.values())

    def end(self):
        everybody = self.processes()
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in everybody:
            # One whose run was ended under it may hang at its exit: Flower's own, not ours.
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(word.endswith("flwr-clientapp") for word in process.cmdline()):
                    process.kill()
        wait_until(lambda: all(gone(process) for process in everybody))

    def _key(self, name, register=True):
        key = self.folder / f"key-{name}"
        if not key.exists():
            write_node_key(key)
            if register:
                self.flwr("supernode", "register", f"{key}.pub", "here")
        return key

    def _start(self, name, words):
        home = self.folder / name
        home.mkdir(exist_ok=True)
        with open(self.folder / f"{name}.log", "a") as log:
            process = subprocess.Popen(
                [BIN / words[0], *map(str, words[1:])],
                cwd=home,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,  # each is a machine of its own
            )
        self.started.append(process)
        return process


def patiently(true, why=lambda: ""):
    """Wait for what several processes do in turn, each of which takes seconds to start."""
    end = time.monotonic() + 4 * PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.1)


@contextlib.contextmanager
def deployed(folder, tls=False, **environment):
    deployment = Deployment(folder, tls, **environment)
    try:
        yield deployment
    finally:
        deployment.end()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def listens(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0
