"""Orders to nodes and their answers back, over Flower's grid.

One message a node and round, however many of its clients are asked: a SuperNode takes one message
at a time, and each costs it a process.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import MessageType

from fedwsq.flower.plain import Request
from fedwsq.flower.roster import Heard, Roster
from fedwsq.transports import Answer, Failure, Order, Reply, is_over, seconds_left
from fedwsq.wire import Kind, kind_of

PATIENCE_SECONDS = 3600.0  # for an answer, where no deadline says otherwise
GRACE_SECONDS = 120.0  # for an answer that is too late: it says how fast its node is
LOOK_SECONDS = 5.0  # how often new nodes are looked for while others work
MAX_REASON = 500  # characters of what another machine says


class FlowerTransport:
    """A `Transport` to the nodes of a roster."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        end = time.monotonic() + min(seconds_left(deadline), PATIENCE_SECONDS)
        self.roster.refresh()
        by_node: dict[int, list[Order]] = {}
        for order in orders:
            node = self.roster.node_of(order.key.client)
            if node is None:
                yield Failure(order.key, "no node is there that it lives on", lost=True)
            else:
                by_node.setdefault(node, []).append(order)
        waiting = self._push(body, by_node, seconds_left(end) + GRACE_SECONDS)
        ours = set(waiting)
        asked = {order.key for order in orders}
        looked = time.monotonic()
        while waiting and not is_over(end):
            for heard in self.roster.answers(min(seconds_left(end), LOOK_SECONDS)):
                waiting.pop(heard.number, None)
                # One of an earlier round comes out for the server to count. It must not pass for an
                # answer to what the same client is asked now: a round both trains and evaluates.
                if heard.number in ours or asked.isdisjoint(heard.sent.keys):
                    yield from _answers(heard)
            if time.monotonic() - looked > LOOK_SECONDS:
                self.roster.refresh()
                looked = time.monotonic()
        for orders in waiting.values():
            yield from _all(orders, "its node did not answer in time", late=True)

    def close(self) -> None:
        """Nodes stay; they are not the run's."""

    def _push(
        self, body: bytes, by_node: Mapping[int, Sequence[Order]], ttl: float
    ) -> dict[str, Sequence[Order]]:
        """Send every node its orders: what is asked, by the id of the message."""
        waiting: dict[str, Sequence[Order]] = {}
        for node, orders in by_node.items():
            bodies = list(dict.fromkeys(order.body or body for order in orders))
            on = [bodies.index(order.body or body) for order in orders]
            request = Request(bodies, [order.head for order in orders], on, self.roster.format)
            scoring = kind_of(orders[0].head) is Kind.EVALUATE
            kind = MessageType.EVALUATE if scoring else MessageType.TRAIN
            for number in self.roster.push(node, kind, request, ttl, orders):
                waiting[number] = orders
        return waiting


def _answers(heard: Heard) -> Iterator[Answer]:
    """What a node's reply says of each order; whatever is wrong with it is wrong with all."""
    orders = heard.sent.orders
    response = heard.response
    if response is None:
        yield from _all(orders, heard.reason, lost=heard.lost)
        return
    if len(response.payloads) != len(orders):
        count = len(response.payloads)
        yield from _all(orders, f"its node sent {count} answers to {len(orders)} orders")
        return
    answers = zip(orders, response.payloads, response.reasons, strict=True)
    for order, payload, reason in answers:
        if reason:
            yield Failure(order.key, reason[:MAX_REASON])
        else:
            yield Reply(order.key, payload)


def _all(
    orders: Sequence[Order], reason: str, lost: bool = False, late: bool = False
) -> Iterator[Failure]:
    for order in orders:
        yield Failure(order.key, reason[:MAX_REASON], lost=lost, late=late)
