"""Splits as files: our own JSON, and the published repositories' text files made into it.

    {"format": "fedwsq-split", "version": 1, "examples": 50000, "repeats": false,
     "clients": [[3, 17], [0, 42, 5]]}

`clients` lists each client's indices into the training examples; `examples` is how many of those
there are, null where nobody knows; `repeats` says whether an index may occur more than once.
"""

import json
import re
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.core.files import write_atomically
from fedwsq.core.text import read_text
from fedwsq.data.split import Split, offsets

FORMAT = "fedwsq-split"
VERSION = 1
KEYS = ("format", "version", "examples", "repeats", "clients")
MAX_BYTES = 64 << 20  # some eight million indices
Repeats = Literal["refuse", "keep", "drop"]

# What `print` puts around lists of numbers: numpy's arrays, sets, other dicts. Made blank.
WRAPPERS = re.compile(
    r"""(?:np\.|numpy\.)?(?:array|u?int\d+|frozenset|set|OrderedDict)\(
    | defaultdict\(<class\ '\w+'>,
    | ,\s*dtype=[\w.]+
    | \)""",
    re.VERBOSE,
)
# Then an entry is a client, `7:` or an OrderedDict's `(7,`, and its list or set of indices.
ENTRY = re.compile(
    r"""(?: (["']?)(\d{1,18})\1\s*: | \(\s*(\d{1,18})\s*, )
    \s*[\[{]([\d,\s]*)[\]}]\s*(?:,\s*|\Z)""",
    re.ASCII | re.VERBOSE,
)


def from_file(labels: Tensor, clients: int, path: str = "") -> Split:
    """A saved split: a file that `fedwsq partition --out FILE` wrote."""
    if not path:
        raise ConfigError(
            "the file split needs data.partition.path = FILE; "
            "`fedwsq partition --out FILE` writes one"
        )
    split, examples = load_split(Path(path).expanduser())
    if len(split) != clients:
        raise ConfigError(
            f"{path} is a split over {len(split)} clients, data.clients is {clients}; "
            "make them agree"
        )
    check_range(split, examples, len(labels), path)
    return split


def check_range(split: Split, examples: int | None, count: int, path: str | Path) -> None:
    """Refuse a split made for other data than `count` examples."""
    there = f"and there are {count} examples (less what validation holds out)"
    if examples not in (None, count):
        raise ConfigError(f"{path} splits {examples} examples, {there}")
    top = int(split.indices.max())
    if top >= count:
        raise ConfigError(f"{path} has index {top}, {there}")


def save_split(path: Path, split: Split, examples: int | None = None) -> None:
    """Write a split so that `load_split` gives it back: one line a client."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "examples": examples,
        "repeats": bool(split.repeats),
    }
    indices = split.indices.tolist()
    shards = [indices[start:end] for start, end in pairwise(split.offsets.tolist())]
    lines = [json.dumps(shard, separators=(",", ":")) for shard in shards]
    # By hand: json puts all clients on one line, or every index on its own.
    opened = json.dumps(head).removesuffix("}")
    text = opened + ', "clients": [\n' + ",\n".join(lines) + "\n]}\n"
    write_atomically(path, text.encode())


def load_split(path: Path) -> tuple[Split, int | None]:
    """The split in a file, and how many examples it was made for if the file says."""
    found = _load_json(path)
    examples = found["examples"]
    repeats = found["repeats"]
    clients = found["clients"]
    if examples is not None and (type(examples) is not int or examples < 1):
        raise DataError(f'{path}: "examples" is {brief(examples)}, must be their number or null')
    if not isinstance(repeats, bool):
        raise DataError(f'{path}: "repeats" is {brief(repeats)}, must be true or false')
    if not isinstance(clients, list) or not all(isinstance(shard, list) for shard in clients):
        raise DataError(f'{path}: "clients" must be a list with a list of indices for each client')

    split = _split(clients, path)
    top = int(split.indices.max())
    if examples is not None and top >= examples:
        raise DataError(f"{path} has index {top}, but splits {examples} examples")
    if split.repeats and not repeats:
        raise DataError(
            f'{path} gives {split.repeats} indices out again, but says "repeats": false'
        )
    return split, examples


def import_split(path: Path, repeats: Repeats = "refuse") -> Split:
    """The split in a published text file: a Python dict or JSON object, client -> indices.

    Nothing is executed. The FedACG and FedWSQ repositories ship such files, some of them with
    indices given out more than once. Dropped, an index stays with the first client that has it.
    """
    split = _split(_parse(_read(path), path), path)
    if not split.repeats or repeats == "keep":
        return split
    if repeats == "refuse":
        raise DataError(
            f"{path} gives {split.repeats} of its {len(split.indices)} indices out again; "
            "--drop-repeats leaves each with the first client that has it, "
            "--keep-repeats takes the file as it is"
        )
    _, first = np.unique(split.indices.numpy(), return_index=True)
    kept = torch.from_numpy(np.sort(first))
    sizes = np.bincount(split.owners[kept], minlength=len(split))
    _require_examples(sizes.tolist(), path)
    return Split(split.indices[kept], offsets(sizes))


def _read(path: Path) -> str:
    """A file's text; a file too large to be a split is not read whole."""
    try:
        return read_text(path, MAX_BYTES)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text") from None
    except ValueError:
        large = f"is larger than {MAX_BYTES >> 20} MB, too large for a split"
        raise DataError(f"{path} {large}") from None


def _load_json(path: Path) -> dict[str, Any]:
    """A split of our format and version with the keys that it has."""
    try:
        found = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not JSON ({error}); `fedwsq partition --import` reads published splits"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f'{path} is not a split: it lacks "format": "{FORMAT}"')
    version = found.get("version")
    if version != VERSION or isinstance(version, bool):  # true == 1
        raise DataError(f"{path} has split version {brief(version)}, this build reads {VERSION}")
    if set(found) != set(KEYS):
        raise DataError(f"{path} has the keys {brief(list(found))}; a split has {', '.join(KEYS)}")
    return found


def _parse(text: str, path: Path) -> list[list[int]]:
    """The lists of `{0: [...], 1: [...]}`, by client; anything else is an error."""
    if "..." in text:
        raise DataError(f"{path} was printed with indices left out (...); it cannot be read back")
    if "(" in text:
        text = WRAPPERS.sub(" ", text)
    text = text.strip()
    if text[:1] + text[-1:] not in ("{}", "[]"):
        raise DataError(
            f"{path} is not a split: expected {{0: [1, 5, 7], 1: [2, 4]}}, "
            "a list of indices a client"
        )
    body = text[1:-1].strip()
    place = 0
    shards: dict[int, list[int]] = {}
    while place < len(body):
        entry = ENTRY.match(body, place)
        if entry is None:
            raise DataError(
                f"{path}: cannot read {body[place : place + 40]!r}; "
                "expected a client and its indices"
            )
        client = int(entry[2] or entry[3])
        if client in shards:
            raise DataError(f"{path} has client {client} twice")
        shards[client] = _numbers(entry[4], f"{path}, client {client}")
        place = entry.end()
    if shards and max(shards) >= len(shards):
        raise DataError(
            f"{path} has {len(shards)} clients, one of them number {max(shards)}; "
            "they must count from 0"
        )
    return [shards[client] for client in range(len(shards))]


def _numbers(text: str, name: str) -> list[int]:
    if not text.strip():
        return []
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None


def _split(shards: Sequence[Sequence[Any]], path: Path) -> Split:
    sizes = [len(shard) for shard in shards]
    _require_examples(sizes, path)
    flat = list(chain.from_iterable(shards))
    odd = sorted(kind.__name__ for kind in set(map(type, flat)) - {int})
    if odd:
        raise DataError(
            f"{path} has {', '.join(odd)} among its indices; they must be whole numbers"
        )
    for extreme in (min(flat), max(flat)):
        if not 0 <= extreme < 2**62:
            raise DataError(f"{path} has index {brief(extreme)}, which no example has")
    return Split(np.array(flat, dtype=np.int64), offsets(sizes))


def _require_examples(sizes: list[int], path: Path) -> None:
    if not sizes:
        raise DataError(f"{path} has no clients")
    if 0 in sizes:
        raise DataError(
            f"{path} leaves client {sizes.index(0)} without examples; every client needs one"
        )
