"""What every transport owes: `transports/base.py` has it in words.

Each is driven alike, with clients that answer, one that fails and one with a broadcast of its own.
"""

import contextlib
import socket
import threading

import pytest
import torch
from sockets import Sockets, receive, send

from fedwsq.core.types import Key
from fedwsq.runs.failures import Watched
from fedwsq.transports import Failure, Order, Pool, Recorder, Reply, Serial, Setup, attempt
from fedwsq.wire import Kind, Message, Schema, encode

CPU = torch.device("cpu")
SCHEMA = Schema({"w": (2,)})
CLIENTS = 6
FAILS = 4


def serve(body: bytes | memoryview, order: Order) -> bytes:
    """Echo the broadcast, the key and the head; one client fails."""
    if order.key.client == FAILS:
        raise ValueError("it cannot")
    return b"|".join([bytes(order.body or body), repr(tuple(order.key)).encode(), order.head])


def factory(settings: bytes) -> object:
    """A worker's end."""
    return serve


def order(round, client, body=b""):
    key = Key(0, round, client)
    head = encode(Message(Kind.ORDER, key, bytes(16), rates=(1.0,)), SCHEMA)
    return Order(key, head, body, cost=client)


def orders(round):
    """One for each client; the third has a broadcast of its own."""
    return [order(round, client, b"its own" * (client == 2)) for client in range(CLIENTS)]


def answer_forever(port, client):
    """A client of `Sockets`, in a thread."""
    with (
        contextlib.suppress(SystemExit, OSError),
        socket.create_connection(("127.0.0.1", port)) as line,
    ):
        send(line, client.to_bytes(8))
        while True:
            body = receive(line)
            numbers = receive(line)
            key = Key(*(int.from_bytes(numbers[at : at + 8], "little") for at in (0, 8, 16)))
            found = attempt(serve, body, Order(key, receive(line)))
            send(line, b"R" if isinstance(found, Reply) else b"F")
            send(line, found.payload if isinstance(found, Reply) else found.reason.encode())


def over_sockets(folder):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for client in range(CLIENTS):
            threading.Thread(target=answer_forever, args=(port, client), daemon=True).start()
        return Sockets(server, CLIENTS)


TRANSPORTS = {
    "serial": lambda folder: Serial(serve),
    "pool": lambda folder: Pool(Setup(f"{__name__}:factory", b""), 2, CPU),
    "recorder": lambda folder: Recorder(Serial(serve), folder / "messages"),
    "watched": lambda folder: Watched(Serial(serve), []),
    "sockets": over_sockets,
}


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request, tmp_path_factory):
    made = TRANSPORTS[request.param](tmp_path_factory.mktemp("transport"))
    yield made
    made.close()


def by_client(answers):
    return sorted(answers, key=lambda answer: answer.key.client)


def test_every_order_is_answered_once_under_its_own_key(transport):
    asked = orders(1)
    answers = by_client(transport.dispatch(b"body", asked))
    assert [answer.key for answer in answers] == [order.key for order in asked]


def test_bytes_arrive_as_they_were_sent_both_ways(transport):
    asked = orders(2)
    for answer in by_client(transport.dispatch(b"body \0\xff", asked)):
        if isinstance(answer, Reply):
            mine = asked[answer.key.client]
            assert answer.payload == serve(b"body \0\xff", mine)


def test_a_clients_fault_is_its_own(transport):
    answers = by_client(transport.dispatch(b"body", orders(3)))
    failed = [answer for answer in answers if isinstance(answer, Failure)]
    assert [answer.key.client for answer in failed] == [FAILS]
    assert "it cannot" in failed[0].reason
    assert not failed[0].lost


def test_nobody_asked_nobody_answers(transport):
    assert list(transport.dispatch(b"body", [])) == []


def test_a_round_left_half_way_does_not_reach_the_next(transport):
    if isinstance(transport, Sockets):
        pytest.skip("ten lines for a test: it does not start its clients again")
    half = transport.dispatch(b"body", orders(4))
    next(half)
    half.close()
    answers = by_client(transport.dispatch(b"other", orders(5)))
    assert [answer.key for answer in answers] == [order.key for order in orders(5)]
    assert answers[0].payload.startswith(b"other|")
