"""A page that is served: what it answers, to whom, and what it notices."""

import http.client
import json
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("bokeh")

from fedwsq.report.page import Followed, Server
from harness import start, wait_until
from report.made_up import make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "one", "fedavg", rounds=4, seed=0)
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path) -> Iterator[Server]:
    with Server(Followed([runs])) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(server: Server, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_the_page_shows_what_is_there_now(server, runs):
    _, state = ask(server, "/state")
    status, page = ask(server, "/")
    assert status == 200
    assert "connect-src &#39;self&#39;" in page
    assert "4 rounds" in page
    assert ask(server, "/state")[1] == state
    assert ask(server, "/")[1] == page  # made once

    rows = runs / "one" / "rounds.jsonl"
    row = json.loads(rows.read_text().splitlines()[-1])
    with open(rows, "a") as file:
        file.write(json.dumps({**row, "round": 5}) + "\n")
    assert ask(server, "/state")[1] != state
    assert "5 rounds" in ask(server, "/")[1]

    # A run that begins joins in.
    shutil.copytree(runs / "one", runs / "two")
    assert "2 runs" in ask(server, "/")[1]


def test_only_this_machine_under_its_own_name_is_answered(server):
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", host="evil.example")[0] == 403
    assert ask(server, "/state", host="evil.example")[0] == 403
    assert ask(server, "/state", host="localhost")[0] == 200
    assert ask(server, "/runs/one/config.toml")[0] == 404
    assert ask(server, "/../one/config.toml")[0] == 404


def test_readers_who_leave_before_their_answer_are_not_reported(server, capfd):
    before = threading.active_count()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.server_port)) as reader:
            reader.sendall(b"GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
            # Closed with a reset, so that what is written to it fails.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ask(server, "/state")  # accepted after all of them
    wait_until(lambda: threading.active_count() <= before)
    assert capfd.readouterr().err == ""


def test_the_verb_serves_until_it_is_interrupted(runs, tmp_path):
    process = start("report", runs, "--watch", cwd=tmp_path)
    assert process.stdout is not None
    address = process.stdout.readline().split()[0]
    port = int(address.rstrip("/").rpartition(":")[2])
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/state")
        assert connection.getresponse().status == 200
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert not (tmp_path / "report.html").exists()
