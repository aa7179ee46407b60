"""Orders to nodes and their answers back, over Flower's grid.

One message a node and round, however many of its clients are asked: a SuperNode takes one message
at a time, and each costs it a process.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message, MessageType

from fedwsq.flower.plain import Malformed, Request
from fedwsq.flower.roster import POLL_SECONDS, Roster, Sent
from fedwsq.transports import Answer, Failure, Order, Reply, is_over, seconds_left
from fedwsq.wire import Kind, kind_of

PATIENCE_SECONDS = 3600.0  # for an answer, where no deadline says otherwise
LOOK_SECONDS = 5.0  # how often new nodes are looked for while others work
MAX_REASON = 500  # characters of what another machine says


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
        looked = time.monotonic()
        while waiting and not is_over(end):
            for message in self.grid.pull_messages(list(waiting)):
                # By what it answers: the error of a node that died carries another's id.
                sent = waiting.pop(message.metadata.reply_to_message_id, None)
                if sent is not None:
                    yield from self._answers(sent, message)
            if waiting:
                time.sleep(POLL_SECONDS)
            if time.monotonic() - looked > LOOK_SECONDS:
                self.roster.refresh()
                looked = time.monotonic()
        for sent in waiting.values():
            yield from _all(sent.orders, "its node did not answer in time", late=True)

    def close(self) -> None:
        """Nodes stay; they are not the run's."""

    def _push(
        self, body: bytes, by_node: Mapping[int, Sequence[Order]], ttl: float
    ) -> dict[str, Sent]:
        """Send every node its orders: what is asked, by the id of the message."""
        waiting: dict[str, Sent] = {}
        for node, orders in by_node.items():
            bodies = list(dict.fromkeys(order.body or body for order in orders))
            on = [bodies.index(order.body or body) for order in orders]
            request = Request(bodies, [order.head for order in orders], on, self.roster.format)
            scoring = kind_of(orders[0].head) is Kind.EVALUATE
            kind = MessageType.EVALUATE if scoring else MessageType.TRAIN
            waiting |= self.roster.push(node, kind, request, ttl, orders)
        return waiting

    def _answers(self, sent: Sent, message: Message) -> Iterator[Answer]:
        """What a node's reply says of each order; whatever is wrong with it is wrong with all."""
        if message.has_error():
            reason = message.error.reason or f"Flower's error {message.error.code}"
            yield from _all(sent.orders, reason, lost=True)
            return
        try:
            response = self.roster.read(sent, message)
            if len(response.payloads) != len(sent.orders):
                raise Malformed(f"{len(response.payloads)} answers to {len(sent.orders)} orders")
        except Malformed as error:
            yield from _all(sent.orders, f"its node sent {error}")
            return
        answers = zip(sent.orders, response.payloads, response.reasons, strict=True)
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
