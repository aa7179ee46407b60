"""Requests and responses in Flower's messages, and out of them again.

Every blob is one Array of raw bytes: Flower sends those in pieces, stores equal ones once, and adds
little. What is read comes from another machine and is checked.
"""

from collections.abc import Sequence
from typing import TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedwsq.flower.plain import Malformed, Request, Response

STYPE = "fedwsq"
WORK = "fedwsq.work"
BYTES = "fedwsq.bytes"
T = TypeVar("T")


def write_request(request: Request) -> RecordDict:
    work = ConfigRecord()
    work["heads"] = list(request.heads)
    work["on"] = list(request.on)
    work["format"] = request.format
    return RecordDict({WORK: work, BYTES: _arrays(request.bodies)})


def read_request(content: RecordDict) -> Request:
    work, bodies = _parts(content)
    heads = _list(work, "heads", bytes)
    on = _list(work, "on", int)
    if len(on) != len(heads) or not all(0 <= number < len(bodies) for number in on):
        raise Malformed(f"{len(heads)} orders on top of the broadcasts {on}, of {len(bodies)}")
    return Request(bodies, heads, on, str(work.get("format", "")))


def write_response(response: Response) -> RecordDict:
    work = ConfigRecord()
    work["reasons"] = list(response.reasons)
    work["clients"] = list(response.clients)
    work["seconds"] = response.seconds
    return RecordDict({WORK: work, BYTES: _arrays(response.payloads)})


def read_response(content: RecordDict) -> Response:
    work, payloads = _parts(content)
    reasons = _list(work, "reasons", str)
    clients = _list(work, "clients", int)
    seconds = work.get("seconds")
    if len(reasons) != len(payloads) or not isinstance(seconds, float):
        raise Malformed(f"{len(payloads)} payloads and {len(reasons)} reasons")
    return Response(payloads, reasons, clients, seconds)


def _arrays(blobs: Sequence[bytes]) -> ArrayRecord:
    arrays = {}
    for number, data in enumerate(blobs):
        arrays[str(number)] = Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)
    return ArrayRecord(arrays)


def _parts(content: RecordDict) -> tuple[ConfigRecord, list[bytes]]:
    """What a message says, and the blobs that it carries in their order."""
    work = content.get(WORK)
    arrays = content.get(BYTES)
    if not isinstance(work, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise Malformed(f"a message with {', '.join(map(str, content))[:80] or 'nothing'} in it")
    numbers = [str(number) for number in range(len(arrays))]
    if set(arrays) != set(numbers):
        raise Malformed(f"arrays {', '.join(map(str, arrays))[:80]}, must be numbered from 0")
    return work, [arrays[number].data for number in numbers]


def _list(work: ConfigRecord, name: str, kind: type[T]) -> list[T]:
    found = work.get(name)
    listed: list[object] = list(found) if isinstance(found, list) else []
    values = [each for each in listed if isinstance(each, kind)]
    if found is None or values != found:
        raise Malformed(f"{name} is {str(found)[:80]}, must be a list of {kind.__name__}")
    return values
