"""A client's end: opens what was packed, and packs what the app returns."""

from logging import getLogger

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedwsq.core.errors import MessageError
from fedwsq.core.seeds import derive
from fedwsq.core.types import Params
from fedwsq.flower.arrays import (
    WISH,
    Wish,
    record_of,
    sealed,
    sealed_in,
    shapes_of,
    tensors_of,
)
from fedwsq.parts import Compressor, CompressorState, unpack
from fedwsq.parts.dictionaries import make_label

log = getLogger("flwr")


def compress_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The client's half of `compress`: `app = ClientApp(mods=[fedwsq.flower.compress_mod])`.

    First in the list, so that other mods see arrays as they are. It does what the server's
    `compress` asks for with each message, and nothing for a server that does not. What a code lost
    is kept in `context.state`, which stays on the node.
    """
    wish = Wish.of(message.content)
    if wish is None:
        return call_next(message, context)
    del message.content[WISH]
    received = _opened(message.content)
    reply = call_next(message, context)
    if reply.has_content():
        _pack(reply.content, received, wish, context)
    return reply


def _opened(content: RecordDict) -> dict[str, Params]:
    """The arrays that came, by record; packed ones are put back as the app knows them."""
    found = {}
    for name, record in list(content.array_records.items()):
        packed = sealed_in(record)
        if packed is not None:
            _, data = packed
            record = record_of(unpack(data))
            content[name] = record
        tensors = tensors_of(record)
        if tensors is not None:
            found[name] = tensors
    return found


def _pack(content: RecordDict, received: dict[str, Params], wish: Wish, context: Context) -> None:
    """Put packed updates in place of the arrays that an app returns."""
    for name, record in list(content.array_records.items()):
        tensors = tensors_of(record)
        base = _base(name, tensors, received)
        if tensors is None or base is None:
            log.warning("%r travels as it is: no arrays of its names and shapes came in", name)
            continue
        update = _update(tensors, received[base], wish)
        content[name] = sealed(base, _compressed(name, update, wish, context))


def _base(name: str, tensors: Params | None, received: dict[str, Params]) -> str | None:
    """The record that came with the same names and shapes; that of the same name first."""
    if tensors is None:
        return None
    for candidate in (name, *received):
        if candidate in received and shapes_of(received[candidate]) == shapes_of(tensors):
            return candidate
    return None


def _update(tensors: Params, base: Params, wish: Wish) -> Params:
    """What changed, of arrays that are coded; what travels exact is the value itself."""
    found = dict(tensors)
    for row in make_label(wish.link, tensors, None).rows:
        if row.coded:
            x = tensors[row.name]
            found[row.name] = x - base[row.name].to(x.dtype)
    return found


def _compressed(name: str, update: Params, wish: Wish, context: Context) -> bytes:
    """The bytes; what the code loses is remembered for the next."""
    (bits,) = wish.link.bits.grants
    # Nodes that round at random do so independently, so that their errors cancel in the mean.
    seed = derive(0, "flower", context.node_id, name)
    compressor = Compressor(wish.link.codec, bits, wish.link.error_feedback, None, seed)
    memory = _recalled(context.state, name, update)
    if memory is not None:
        # The server may ask for other bits than before: what was lost is of use to any code.
        compressor.load_state_dict({**memory, "settings": compressor.settings})
    data = compressor.compress(update)
    _remember(context.state, name, compressor.state_dict())
    return data


def _recalled(state: RecordDict, name: str, update: Params) -> CompressorState | None:
    counts = state.config_records.get(f"{WISH} {name}")
    if counts is None:
        return None
    residuals = tensors_of(state.array_records[f"{WISH} {name} residuals"]) or {}
    # A model that grew starts anew where it did.
    shapes = shapes_of(update)
    kept = {key: x for key, x in residuals.items() if shapes.get(key) == tuple(x.shape)}
    messages = counts["messages"]
    if not isinstance(messages, int):
        raise MessageError(f"{WISH} {name} in the node's state counts {messages!r} messages")
    # No scales: updates shrink as training goes on, and an average of earlier ones is too large.
    return CompressorState(settings={}, messages=messages, residuals=kept, scales={})


def _remember(state: RecordDict, name: str, memory: CompressorState) -> None:
    state[f"{WISH} {name}"] = ConfigRecord({"messages": memory["messages"]})
    state[f"{WISH} {name} residuals"] = record_of(memory["residuals"])
