"""A client's end of an order: what it refuses, and what it keeps of a broadcast."""

import tempfile
from dataclasses import replace

import pytest
import torch

from fedwsq.core.errors import FedwsqError, MessageError
from fedwsq.core.types import Key
from fedwsq.federation.memory import ClientStore
from fedwsq.federation.simulation import simulate
from fedwsq.federation.site import Cache, Received
from fedwsq.transports import Order
from fedwsq.wire import Kind, Message, decode, encode
from fedwsq.wire.parse import kind_of
from harness import tiny

CPU = torch.device("cpu")


class Heard:
    """A round's broadcast and its first order, as a server sends them."""

    def __init__(self, **settings):
        self.simulation = simulate(tiny(eval_every=9, **settings))
        self.schema = self.simulation.charter.schema
        self.site = self.simulation.site(CPU)
        self.simulation.server(self).step()

    def dispatch(self, body, orders, deadline=None):
        self.body = body
        self.order = orders[0]
        return iter(())

    def reordered(self, **changes):
        head = encode(replace(decode(self.order.head, self.schema), **changes), self.schema)
        return Order(self.order.key, head)

    def rebroadcast(self, **changes):
        return encode(replace(decode(self.body, self.schema), **changes), self.schema)


@pytest.fixture(scope="module")
def heard():
    return Heard()


def test_an_order_is_answered_by_a_reply_that_names_it(heard):
    reply = decode(heard.site.answer(heard.body, heard.order), heard.schema, Kind.REPLY)
    order = decode(heard.order.head, heard.schema)
    assert (reply.key, reply.run, reply.nonce) == (order.key, order.run, order.nonce)
    assert reply.agreement == heard.simulation.charter.digest
    assert reply.weight == len(heard.simulation.clients.shard(order.key.client).y)
    assert set(reply.metrics) == {"loss", "steps", "lr_sum", "train_seconds", "codec_seconds"}


def test_a_site_that_is_given_a_store_makes_no_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    heard = Heard(algorithm="scaffold")
    heard.site.store = ClientStore(tmp_path / "given")
    heard.site.answer(heard.body, heard.order)
    assert [each.name for each in tmp_path.iterdir()] == ["given"]
    heard.simulation.site(CPU, tmp_path / "given").answer(heard.body, heard.order)
    assert [each.name for each in tmp_path.iterdir()] == ["given"]


def test_the_same_order_gives_the_same_bytes_but_for_the_seconds(heard):
    first, second = (
        decode(heard.site.answer(heard.body, heard.order), heard.schema) for _ in range(2)
    )
    assert first.packets == second.packets
    assert first.error == second.error


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": Key(0, 2, 1)}, "order for round 2 on top of the broadcast of round 1"),
        ({"key": Key(0, 1, 10)}, "order for client 10, the split has 10"),
        ({"accepted": 1}, "order for round 1 names round 1 as accepted already"),
        ({"accepted": 2**40}, "accepted already"),
        ({"run": bytes(16)}, "not of this run"),
        ({"agreement": bytes(16)}, "works by other settings"),
        ({"kind": Kind.REPLY}, "message is of kind reply, expected order"),
        ({"kind": Kind.BROADCAST}, "message is of kind broadcast, expected order"),
        ({"kind": Kind.SCORES}, "message is of kind scores, expected order"),
        ({"kind": Kind.FORGOT}, "message is of kind forgot, expected order"),
        ({"rates": (3.0,)}, "danuq has no 3-bit rate"),
    ],
    ids=range(11),
)
def test_an_order_that_makes_no_sense_is_refused(heard, changes, why):
    with pytest.raises(FedwsqError, match=why):
        heard.site.answer(heard.body, heard.reordered(**changes))


def test_a_broadcast_by_other_settings_is_refused(heard):
    other = heard.rebroadcast(agreement=bytes(16))
    with pytest.raises(MessageError, match="works by other settings"):
        heard.site.answer(other, heard.order)
    states = {"delta": {}}
    with pytest.raises(MessageError, match="codec state is not that of this run"):
        heard.site.answer(heard.rebroadcast(states=states), heard.order)


def test_an_order_may_bring_a_broadcast_of_its_own(heard):
    """It is read in place of the round's, whatever that one is."""
    whole = heard.order._replace(body=heard.body)
    reply = decode(heard.site.answer(b"something else", whole), heard.schema, Kind.REPLY)
    plain = decode(heard.site.answer(heard.body, heard.order), heard.schema, Kind.REPLY)
    assert reply.packets == plain.packets


def test_a_damaged_order_is_refused_before_anything_is_done(heard):
    for head in (b"", b"FWSQ", heard.order.head[:-1], heard.order.head + b"x", bytes(300)):
        with pytest.raises(MessageError):
            heard.site.answer(heard.body, heard.order._replace(head=head))


def test_a_client_that_forgot_says_so_to_this_order_alone():
    heard = Heard(algorithm="scaffold")
    key = heard.order.key._replace(round=2)
    body = heard.rebroadcast(key=decode(heard.body, heard.schema).key._replace(round=2))
    order = heard.reordered(key=key, accepted=1)
    payload = heard.site.answer(body, order)
    assert kind_of(payload) is Kind.FORGOT
    said = decode(payload, heard.schema)
    asked = decode(order.head, heard.schema)
    assert (said.key, said.run, said.nonce) == (key, asked.run, asked.nonce)
    assert said.agreement == heard.simulation.charter.digest
    # Nothing is remembered of it: asked to start anew, it does.
    assert not (heard.site.store.folder / str(key.client)).exists()
    again = heard.site.answer(body, heard.reordered(key=key, accepted=0))
    assert kind_of(again) is Kind.REPLY


def test_the_last_broadcasts_are_decoded_once():
    cache = Cache(2)
    found = [Received(bytes([i]), i, {}, {}, {}) for i in range(3)]
    bodies = [b"one", b"two", b"three"]
    for body, received in zip(bodies, found, strict=True):
        assert cache.get(body) is None
        cache.put(body, received)
    assert cache.get(b"one") is None  # no longer
    assert cache.get(memoryview(b"two")) is found[1]
    assert cache.get(b"three") is found[2]
    single = Cache(1)
    single.put(b"one", found[0])
    single.put(b"two", found[1])
    assert single.get(b"one") is None
    assert single.get(b"two") is found[1]


def test_a_site_works_on_one_thread_whatever_carries_its_orders(monkeypatch):
    simulation = simulate(tiny())
    site = simulation.site(torch.device("cpu"))
    seen = []
    monkeypatch.setattr(site, "_greet", lambda body, head: seen.append(torch.get_num_threads()))
    monkeypatch.setattr("fedwsq.federation.site.encode", lambda reply, schema: b"")
    hello = Message(Kind.HELLO, Key(0, 0, 1), bytes(16))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        site.answer(b"", Order(hello.key, encode(hello, simulation.charter.schema)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1]
