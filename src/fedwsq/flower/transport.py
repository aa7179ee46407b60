"""Orders to nodes and their answers back, over Flower's grid.

One message a node and round, however many of its clients are asked: a SuperNode takes one message
at a time, and each costs it a process.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message, MessageType

from fedwsq.flower.envelope import read_response, write_request
from fedwsq.flower.plain import Malformed, Request
from fedwsq.flower.roster import POLL_SECONDS, Roster
from fedwsq.transports import Answer, Failure, Order, Reply, is_over, seconds_left, too_late
from fedwsq.wire import Kind, kind_of

PATIENCE_SECONDS = 3600.0  # for an answer, where no deadline says otherwise
MAX_REASON = 500  # characters of what another machine says
TYPES = {Kind.ORDER: MessageType.TRAIN, Kind.EVALUATE: MessageType.EVALUATE}


class FlowerTransport:
    """A `Transport` to the nodes of a roster."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.grid = roster.grid

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
        waiting = self._push(body, by_node, seconds_left(end))
        while waiting and not is_over(end):
            for message in self.grid.pull_messages(list(waiting)):
                # By what it answers: the error of a node that died carries another's id.
                asked = waiting.pop(message.metadata.reply_to_message_id, [])
                yield from read_answers(message, asked)
            if waiting:
                time.sleep(POLL_SECONDS)
        for asked in waiting.values():
            yield from (too_late(order.key, "its node did not answer in time") for order in asked)

    def close(self) -> None:
        """Nodes stay; they are not the run's."""

    def _push(
        self, body: bytes, by_node: Mapping[int, Sequence[Order]], ttl: float
    ) -> dict[str, Sequence[Order]]:
        """Send every node its orders: what is asked, by the number of the message."""
        waiting: dict[str, Sequence[Order]] = {}
        for node, orders in by_node.items():
            bodies = list(dict.fromkeys(order.body or body for order in orders))
            on = [bodies.index(order.body or body) for order in orders]
            request = Request(bodies, [order.head for order in orders], on, self.roster.format)
            kind = TYPES[kind_of(orders[0].head)]
            message = Message(write_request(request), node, kind, ttl=ttl)
            (number,) = self.grid.push_messages([message])
            waiting[number] = orders
        return waiting


def read_answers(message: Message, asked: Sequence[Order]) -> Iterator[Answer]:
    """What a node's reply says of each order; whatever is wrong with it is a failure of all."""
    if message.has_error():
        reason = message.error.reason or f"Flower's error {message.error.code}"
        yield from (Failure(order.key, reason[:MAX_REASON], lost=True) for order in asked)
        return
    try:
        response = read_response(message.content)
        if len(response.payloads) != len(asked):
            raise Malformed(f"{len(response.payloads)} answers to {len(asked)} orders")
    except Malformed as error:
        yield from (Failure(order.key, f"its node sent {error}") for order in asked)
        return
    for order, payload, reason in zip(asked, response.payloads, response.reasons, strict=True):
        if reason:
            yield Failure(order.key, reason[:MAX_REASON])
        else:
            yield Reply(order.key, payload)
