"""What is fuzzed: one reader of foreign bytes each, and how damage is sealed so that it gets in.

A reader returns, or raises one of its refusals; anything else is a finding. `opened` is the part
inside a checksum, a digest or a compression, and `sealed` puts that around it again.
"""

import gzip
import hashlib
import io
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import fedwsq
from fedwsq.codecs import CODECS
from fedwsq.core.checked import checked
from fedwsq.core.errors import ConfigError, DataError, MessageError, RunError
from fedwsq.core.types import Key
from fedwsq.data.cifar import _read as read_cifar_file
from fedwsq.data.cifar10 import CIFAR10
from fedwsq.data.images import open_image
from fedwsq.data.npz import npz
from fedwsq.data.split_files import import_split, load_split
from fedwsq.data.unpack import unpack
from fedwsq.federation.bounds import Usual
from fedwsq.federation.charter import Charter
from fedwsq.federation.fold import Assignment, Before, Fold
from fedwsq.federation.owners import ExampleFormat, ModelSpec
from fedwsq.federation.server import first_snapshot
from fedwsq.federation.spool import Spool
from fedwsq.plan import importing_only, load_plan, make_plan
from fedwsq.plan.grid import read_grid
from fedwsq.report.looks import look
from fedwsq.report.page.findings import read_findings
from fedwsq.report.page.insights import SERIES, codec_tables, curvature, gradient_table
from fedwsq.report.page.tables import Entry
from fedwsq.runs import checkpoint
from fedwsq.runs.directory import read_rows
from fedwsq.runs.manifest import read_manifest
from fedwsq.runs.reading import read_run
from fedwsq.runs.receipt import Receipt, read_receipt
from fedwsq.runs.verify import Verification
from fedwsq.transports import Order, Reply
from fedwsq.wire import Kind, Message, decode, encode
from fedwsq.wire.channels import _read_trace, read_trace
from fedwsq.wire.message import CHECKSUM_BYTES, HEADER_BYTES

MEMORY = Path("/dev/shm")  # files in it cost no disk


def plain(data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Target:
    """A reader, what it refuses with, and the seal around what it reads."""

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    opened: Callable[[bytes], bytes] = plain
    sealed: Callable[[bytes], bytes] = plain
    tokens: tuple[bytes, ...] = ()  # that damage likes to put somewhere


@cache
def folder() -> Path:
    """A place for the files of this process, which goes with it."""
    place = MEMORY if MEMORY.is_dir() else None
    held = tempfile.TemporaryDirectory(prefix="fedwsq-fuzz-", dir=place)
    HELD.append(held)
    return Path(held.name)


HELD: list[tempfile.TemporaryDirectory[str]] = []


def written(name: str, data: bytes) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


# Messages, all the way into the sums of a round.


def tiny_model(classes: int = 3) -> nn.Module:
    return nn.Linear(4, classes)


@cache
def charters() -> dict[bytes, Charter]:
    """By the codec's name, as long as a digest: a run of a few weights for every codec."""
    found = {}
    form = ExampleFormat(classes=3, shape=(4,))
    for codec in CODECS:
        settings = {
            "model": {"name": f"{__name__}:tiny_model"},
            "uplink": {"codec": codec, "select": "all"},
        }
        plan = make_plan(settings)
        charter = Charter(plan, ModelSpec(plan, form))
        found[codec.encode().ljust(16, b"\0")] = charter
    return found


def order_of(charter: Charter) -> Message:
    return Message(
        Kind.ORDER,
        Key(0, 1, 2),
        bytes(16),
        bytes(16),
        charter.digest,
        rates=charter.uplink.grant(Key(0, 1, 2), None, charter.uplink.init(("delta",)), ("delta",))
        or (),
    )


def honest_reply(charter: Charter) -> bytes:
    rng = torch.Generator().manual_seed(1)
    params = charter.model.initial_params()
    update = {name: torch.randn(x.shape, generator=rng) for name, x in params.items()}
    order = order_of(charter)
    shared = charter.uplink.init(("delta",))
    sent = charter.uplink.send({"delta": update}, shared, order.key, order.rates)
    reply = Message(
        Kind.REPLY,
        order.key,
        order.run,
        order.nonce,
        charter.digest,
        weight=7.0,
        error=sent.error,
        metrics={"loss": 1.5, "steps": 3.0},
        packets=sent.packets,
    )
    return encode(reply, charter.schema)


@dataclass(frozen=True)
class Round:
    """What a reply is held against; made once, for building it costs more than a message."""

    charter: Charter
    asked: Assignment
    before: Before


@cache
def rounds() -> dict[bytes, Round]:
    found = {}
    for name, charter in charters().items():
        order = order_of(charter)
        sent = Order(order.key, encode(order, charter.schema))
        asked = Assignment(order, sent, 0, 0, None, None)
        shared = charter.uplink.init(("delta",))
        before = Before(charter.model.initial_params(), shared, Usual())
        found[name] = Round(charter, asked, before)
    return found


AGREEMENT_AT = slice(32, 48)


def read_message(data: bytes) -> None:
    """As a server does; a reply that is let in leaves finite sums, any other names its reason."""
    name = data[AGREEMENT_AT]
    here = rounds().get(name) or next(iter(rounds().values()))
    if name in rounds():
        data = with_agreement(data, here.charter.digest)
    client = here.asked.message.key.client
    fold = Fold(here.charter, {client: here.asked}, here.before, Spool(None))
    fold.take(Reply(here.asked.message.key, data))
    folded = fold.finish()
    if not folded.replies:
        decode(data, None)  # as `fedwsq inspect` does
        raise MessageError(folded.failures[client])
    for x in folded.vectors["delta"].values():
        assert torch.isfinite(x).all()


def with_agreement(data: bytes, agreement: bytes) -> bytes:
    """The same with these 16 bytes; a sealed one stays sealed.

    The corpus has a codec's name there: a digest changes with every setting that a plan is given.
    """
    changed = data[: AGREEMENT_AT.start] + agreement + data[AGREEMENT_AT.stop :]
    return seal_message(changed) if seal_message(data) == data else changed


def seal_message(data: bytes) -> bytes:
    """The same with a length and a checksum that fit what is in it now."""
    if len(data) < HEADER_BYTES + CHECKSUM_BYTES:
        return data
    data = data[:8] + struct.pack("<Q", len(data)) + data[16:]
    body = data[:-CHECKSUM_BYTES]
    return body + hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()


def read_pack(data: bytes) -> None:
    for x in fedwsq.unpack(data, max_elements=2**22).values():
        assert not x.is_floating_point() or torch.isfinite(x).all()


# Run directories.


def tiny_snapshot() -> object:
    return first_snapshot(next(iter(charters().values())))


@cache
def first() -> object:
    return tiny_snapshot()


def read_checkpoint(data: bytes) -> None:
    found = checkpoint.read_checkpoint(written("last.safetensors", data))
    checkpoint.require_fit(found, first())  # type: ignore[arg-type]


def seal_checkpoint(data: bytes) -> bytes:
    """The same with the digest of what is in it now, where that can be told."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        said = json.loads(header["__metadata__"]["fedwsq"])
        said.pop("digest", None)
        tensors = safetensors_load(data)
        chosen = {name: tensors[name] for name in said["tensors"]}
        said["digest"] = checkpoint._digest(said, chosen)
        header["__metadata__"]["fedwsq"] = json.dumps(said)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + data[8 + size :]
    except Exception:  # damaged beyond that
        return data


def safetensors_load(data: bytes) -> dict[str, Tensor]:
    import safetensors.torch

    return dict(safetensors.torch.load(data))


def read_directory(data: bytes) -> None:
    """Rows, then after a line of dashes a manifest."""
    rows, _, manifest = data.partition(b"\n---\n")
    written("rounds.jsonl", rows + b"\n")
    written("manifest.json", manifest)
    for row in read_rows(folder()):
        row.line()
    read_manifest(folder())
    read_run(folder())


# What people write and what is measured.


def read_split(data: bytes) -> None:
    path = written("split", data)
    if data[:1] == b"{" and b'"format"' in data:
        load_split(path)
    else:
        import_split(path, "keep")


def read_channels(data: bytes) -> None:
    _read_trace.cache_clear()
    suffix = ".jsonl" if data[:1] == b"{" else ".csv"
    read_trace(str(written(f"trace{suffix}", data)))


def read_config(data: bytes) -> None:
    with importing_only(()):
        load_plan(written("config.toml", data))


def read_grid_file(data: bytes) -> None:
    with importing_only(()):
        read_grid([str(written("grid.toml", data))]).cells()


def read_receipt_file(data: bytes) -> None:
    receipt = read_receipt(written("receipt.json", data))
    with importing_only(()):
        Verification(receipt, {}).plan()


def seal_receipt(data: bytes) -> bytes:
    """The same with the digest of what is in it now, where that can be told."""
    try:
        found = json.loads(data)
        found["digest"] = checked(Receipt, found).digest
        return json.dumps(found).encode()
    except Exception:  # damaged beyond that
        return data


def read_analyses(data: bytes) -> None:
    """Any of the files that `fedwsq analyze` writes; what cannot be read is a problem, no error."""
    place = folder() / "analysis"
    place.mkdir(exist_ok=True)
    for name in ("hessian", "landscape", "updates", "drift", "gradients", "scales"):
        (place / f"{name}.json").write_bytes(data)
    found = read_findings(folder())
    entries = [Entry(0, "run", "seed 0", look(0))]
    curvature(entries, [[found]])
    codec_tables(entries, [[found]])
    gradient_table(entries, [[found]])
    for series in SERIES:
        series.of(found)
    if len(found.problems) == 6:
        raise RunError(found.problems[0])


# Data from elsewhere.


def read_archive(data: bytes) -> None:
    suffix = ".gz"
    if data[:2] == b"PK":
        suffix = ".zip"
    elif b"ustar" in _start_of(data):
        suffix = ".tar.gz"
    into = folder() / "out"
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    unpack(written(f"archive{suffix}", data), into, "top", limit=100_000)
    size = 0
    for path in into.rglob("*"):
        assert not path.is_symlink()
        size += path.stat().st_size if path.is_file() else 0
    assert size <= 100_000


def _start_of(data: bytes) -> bytes:
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(data)).read(600)
    except Exception:
        return b""


def open_archive(data: bytes) -> bytes:
    """A gzip is damaged inside; a zip as it is."""
    try:
        return b"\x1f\x8b" + gzip.decompress(data)
    except Exception:
        return data


def seal_archive(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        return gzip.compress(data[2:], compresslevel=1, mtime=0)
    return data


def read_arrays(data: bytes) -> None:
    npz(str(written("arrays.npz", data)))


def read_image(data: bytes) -> None:
    open_image(written("image", data), "image")


def read_pickle(data: bytes) -> None:
    read_cifar_file(CIFAR10, written("test_batch", data))


JSON_TOKENS = (
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"null", b"true", b"NaN", b"1e999", b"-1", b"0.5"),
    *(b"9" * 400, b"[" * 3000, b"2147483648", b"18446744073709551616"),
    *(b'"\\ud800"', b"\\u001b[2J", b"\xff"),
)
# Types of tensors, which fit over each other in the head of a file.
TENSOR_TOKENS = (
    *JSON_TOKENS,
    *(b'"F32"', b'"U32"', b'"I32"', b'"U16"', b'"F16"', b'"C64"', b'"I64"', b'"BF16"', b'"BOOL"'),
)
TOML_TOKENS = tuple(
    f"\n{line}\n".encode()
    for line in (
        "rounds = 0",
        "data.clients = 10000000000",
        "[uplink]",
        "[[data]]",
        'uplink.codec = { name = "ecq" }',
        'algorithm = "os:system"',
        "uplink.bits = 0.3",
        "a.b.c.d = [1, [2, [3]]]",
        'model.train = "(("',
        "seed = -1",
        'x = """',
        "training.lr = nan",
        "d = 1979-05-27T07:32:00Z",
    )
)
TARGETS: dict[str, Target] = {
    "messages": Target(
        read_message, (MessageError,), sealed=seal_message, tokens=(bytes(4), b"\xff" * 4)
    ),
    "packs": Target(read_pack, (MessageError,), sealed=seal_message, tokens=JSON_TOKENS),
    "checkpoints": Target(
        read_checkpoint, (RunError,), sealed=seal_checkpoint, tokens=TENSOR_TOKENS
    ),
    "directories": Target(read_directory, (RunError,), tokens=JSON_TOKENS),
    "splits": Target(read_split, (DataError, ConfigError), tokens=JSON_TOKENS),
    "traces": Target(read_channels, (ConfigError,), tokens=JSON_TOKENS),
    "configs": Target(read_config, (ConfigError,), tokens=TOML_TOKENS),
    "grids": Target(read_grid_file, (ConfigError,), tokens=TOML_TOKENS),
    "receipts": Target(
        read_receipt_file, (RunError, ConfigError), sealed=seal_receipt, tokens=JSON_TOKENS
    ),
    "analyses": Target(read_analyses, (RunError,), tokens=JSON_TOKENS),
    "archives": Target(read_archive, (DataError,), open_archive, seal_archive),
    "arrays": Target(read_arrays, (DataError,)),
    "images": Target(read_image, (DataError,)),
    "pickles": Target(read_pickle, (DataError,)),
}
CORPUS = Path(__file__).parent / "corpus"


def corpus(kind: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / kind).iterdir())]


def outcome(kind: str, data: bytes) -> str:
    """`read` or `refused`; whatever else it raises is a finding."""
    target = TARGETS[kind]
    try:
        target.read(data)
    except target.refusals as refusal:
        text = str(refusal)
        assert text.replace("\n", "").replace("\t", "").isprintable(), text
        assert len(text) < 5_000
        return "refused"
    return "read"
