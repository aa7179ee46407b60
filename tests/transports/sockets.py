"""A transport over plain sockets; `python sockets.py FOLDER CLIENT PORT` is a client for it."""

import socket
import sys
from pathlib import Path

import numpy as np
import torch

from fedwsq.core.types import Key
from fedwsq.data import Dataset, Examples
from fedwsq.federation.site import own_site
from fedwsq.plan import load_plan
from fedwsq.transports import Failure, Order, Reply, attempt


class Sockets:
    """One connection a client, who says its number first; a frame is its length, then its bytes."""

    def __init__(self, server, clients):
        self.lines = {}
        for _ in range(clients):
            line, _ = server.accept()
            self.lines[int.from_bytes(receive(line))] = line

    def dispatch(self, body, orders, deadline=None):
        for order in orders:
            line = self.lines[order.key.client]
            for frame in (order.body or body, np.asarray(order.key, "<u8").tobytes(), order.head):
                send(line, frame)
        for order in orders:
            line = self.lines[order.key.client]
            kind = receive(line)
            payload = receive(line)
            if kind == b"R":
                yield Reply(order.key, payload)
            else:
                yield Failure(order.key, payload.decode())

    def close(self):
        for line in self.lines.values():
            line.close()


def send(line, data):
    line.sendall(len(data).to_bytes(8) + data)


def receive(line):
    return exactly(line, int.from_bytes(exactly(line, 8)))


def exactly(line, count):
    data = line.recv(count, socket.MSG_WAITALL) if count else b""
    if len(data) < count:
        raise SystemExit  # the other end is gone, and so is our work
    return data


def main(folder, client, port):
    torch.set_num_threads(1)
    folder = Path(folder)
    arrays = np.load(folder / "mine.npz")
    examples = Examples([torch.from_numpy(arrays["x"])], torch.from_numpy(arrays["y"]))
    plan = load_plan(folder / "plan.toml")
    data = Dataset(examples, examples, classes=10)
    site = own_site(plan, int(client), data, torch.device("cpu"), folder / "memory")
    with socket.create_connection(("127.0.0.1", int(port))) as line:
        send(line, int(client).to_bytes(8))
        while True:
            body = receive(line)
            key = np.frombuffer(receive(line), "<u8").tolist()
            answer = attempt(site.answer, body, Order(Key(*key), receive(line)))
            send(line, b"R" if isinstance(answer, Reply) else b"F")
            send(line, answer.payload if isinstance(answer, Reply) else answer.reason.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
