"""A grid that sends less than it is given, and gives back what was meant."""

from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import NamedTuple

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedwsq.core.errors import FedwsqError, MessageError
from fedwsq.flower.arrays import WISH, Wish, moved, record_of, sealed, sealed_in, tensors_of
from fedwsq.parts import pack
from fedwsq.wire import Link

log = getLogger("flwr")


class Ways(NamedTuple):
    """How updates travel, and how models do; None: as they are."""

    up: Link
    down: Link | None


class Sent(NamedTuple):
    """A message as it was given, and as it went out."""

    given: Message
    small: Message


class CompressedGrid(Grid):
    """Flower's grid with smaller messages on it."""

    def __init__(self, grid: Grid, ways: Ways) -> None:
        self._grid = grid
        self._ways = ways
        self._waiting: dict[str, Sent] = {}  # pushed and not yet answered
        self._warned = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = self._reduced(messages)
        ids = self._grid.push_messages([each.small for each in sent])
        self._waiting |= _by_id(sent)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = self._restored(self._grid.pull_messages(message_ids), self._waiting)
        for reply in replies:
            self._waiting.pop(reply.metadata.reply_to_message_id, None)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = self._reduced(messages)
        replies = self._grid.send_and_receive([each.small for each in sent], timeout=timeout)
        return self._restored(replies, _by_id(sent))

    # On the way out.

    def _reduced(self, messages: Iterable[Message]) -> list[Sent]:
        wish = Wish(self._ways.up).record()
        # Strategies send one record to many nodes: it is coded once, and Flower stores it once.
        coded: dict[int, ArrayRecord] = {}
        sent = []
        for message in messages:
            content = RecordDict({WISH: wish})
            for name, record in message.content.items():
                if isinstance(record, ArrayRecord):
                    if id(record) not in coded:
                        coded[id(record)] = self._coded(name, record)
                    record = coded[id(record)]
                content[name] = record
            sent.append(Sent(message, _with_content(message, content)))
        return sent

    def _coded(self, name: str, record: ArrayRecord) -> ArrayRecord:
        if self._ways.down is None:
            return record
        tensors = tensors_of(record)
        if tensors is None:
            log.warning("%r travels as it is: it has arrays that cannot be coded", name)
            return record
        (bits,) = self._ways.down.bits.grants
        try:
            return sealed(name, pack(tensors, self._ways.down.codec, bits))
        except FedwsqError as error:
            # Without compression the run would go on: a model that is not finite is its matter.
            log.warning("%r travels as it is: %s", name, error)
            return record

    # On the way back.

    def _restored(self, replies: Iterable[Message], sent: Mapping[str, Sent]) -> list[Message]:
        found = []
        for reply in replies:
            answered = sent.get(reply.metadata.reply_to_message_id)
            if answered is None:
                log.warning("a reply to nothing that was sent; it is dropped")
            else:
                found.append(self._whole(reply, answered))
        return found

    def _whole(self, reply: Message, sent: Sent) -> Message:
        """The reply with its arrays as the app returned them, or an error that says why not."""
        if not reply.has_content():
            return reply
        try:
            for name, record in list(reply.content.array_records.items()):
                packed = sealed_in(record)
                if packed is None:
                    self._warn_once(reply.metadata.src_node_id, name)
                else:
                    reply.content[name] = _opened(*packed, sent.given)
        except MessageError as error:
            # Strategies log it and go on with the others.
            refused = Error(ErrorCode.MOD_FAILED_PRECONDITION, f"a bad update: {error}")
            return Message(refused, reply_to=sent.small)
        return reply

    def _warn_once(self, node: int, name: str) -> None:
        if self._warned:
            return
        self._warned = True
        log.warning(
            "node %d sends %r as it is: its ClientApp lacks compress_mod, or returns other arrays "
            "than it received",
            node,
            name,
        )

    # Everything else is as it was.

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()


def _by_id(sent: list[Sent]) -> dict[str, Sent]:
    """By the id that a message got when it was pushed."""
    return {each.small.metadata.message_id: each for each in sent}


def _with_content(message: Message, content: RecordDict) -> Message:
    about = message.metadata
    return Message(
        content,
        about.dst_node_id,
        about.message_type,
        ttl=about.ttl,
        group_id=about.group_id,
        dst_task_id=about.dst_task_id,
    )


def _opened(base_name: str, data: bytes, given: Message) -> ArrayRecord:
    """The arrays that an update leads to, from those that the server sent."""
    base = given.content.array_records.get(base_name)
    tensors = None if base is None else tensors_of(base)
    if tensors is None:
        raise MessageError(f"it is relative to {base_name[:80]!r}, which was not sent")
    return record_of(moved(data, tensors))
