"""Images decoded once: a safetensors file that later loads, and all processes of a machine, map instead of decoding.

The file is used only if it was made from the same sources (`fingerprint`) and its pixels have the digest it states; a
stale or damaged one is made again. It appears whole or not at all, so several processes may make it at the same time.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedwsq.core.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

Bytes = npt.NDArray[np.uint8]
DIGEST = "sha256"


def cached(
    title: str, source: Path, fingerprint: str, shape: tuple[int, ...], chunks: Iterable[Bytes]
) -> Tensor:
    """A mapped uint8 tensor [n, c, h, w], filled with `chunks` of it in order; they are asked for only where needed.

    The file lies beside `source`, or in the user's cache folder where nothing can be written there.
    """
    kind = "decoded-{3}x{2}.safetensors".format(*shape)
    user = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "fedwsq"
    places = [
        source.with_name(f"{source.name}.{kind}"),
        user / f"{digest(str(source))[:16]}.{kind}",
    ]
    for place in places:
        images = _read(place, fingerprint, shape)
        if images is not None:
            return images
    return _write(title, places, fingerprint, shape, chunks)


def digest(text: str) -> str:
    """Of a text, in hex."""
    return hashlib.new(DIGEST, text.encode(errors="surrogateescape")).hexdigest()


def _read(path: Path, fingerprint: str, shape: tuple[int, ...]) -> Tensor | None:
    """The images in a cache file, or None if it is missing, stale or damaged."""
    try:
        with safe_open(path, "pt") as file:  # maps it, and refuses a wrong length
            stated: dict[str, str] = file.metadata() or {}
            if stated.get("fingerprint") != fingerprint:
                return None
            images: Tensor = file.get_tensor("images")
    except (OSError, SafetensorError):
        return None
    if (str(images.dtype), tuple(images.shape)) != ("torch.uint8", shape):
        return None
    return (
        images
        if hashlib.new(DIGEST, images.numpy().data).hexdigest() == stated.get(DIGEST)
        else None
    )


def _write(
    title: str,
    places: list[Path],
    fingerprint: str,
    shape: tuple[int, ...],
    chunks: Iterable[Bytes],
) -> Tensor:
    """Make the cache file in the first place that takes it."""
    path, temporary = _open(title, places)
    try:
        with temporary as file:
            _announce(title, path, places, shape[0])
            file.write(_header(shape, fingerprint, "0" * 64))
            seen = hashlib.new(DIGEST)
            for chunk in _progress(title, chunks, shape[0]):
                pixels = np.ascontiguousarray(chunk)
                seen.update(pixels.data)
                file.write(pixels.data)
            file.seek(0)
            file.write(_header(shape, fingerprint, seen.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
        images = _read(
            Path(temporary.name), fingerprint, shape
        )  # before others can replace it; the mapping stays
        if images is None:
            raise DataError(
                f"the decoded {title} cannot be read back from {path.parent}; check the disk, and try again"
            )
        os.chmod(temporary.name, 0o644)  # other users of a shared data folder may map it too
        os.replace(temporary.name, path)
        return images
    except OSError as error:
        raise DataError(
            f"cannot write the decoded {title} to {path}: {error.strerror or error}"
        ) from error
    finally:
        Path(temporary.name).unlink(missing_ok=True)


def _open(title: str, places: list[Path]) -> tuple[Path, "tempfile._TemporaryFileWrapper[bytes]"]:
    """The first place whose folder can be written, and an open file of a name of its own in that folder."""
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path, tempfile.NamedTemporaryFile(
                dir=path.parent, prefix=f"{path.name}.", delete=False
            )
        except OSError as error:
            last = error
    tried = " nor ".join(str(path.parent) for path in places)
    raise DataError(
        f"{title} is decoded once into a file, but neither {tried} can be written ({last.strerror or last}); "
        "point XDG_CACHE_HOME at a folder that can"
    )


def _header(shape: tuple[int, ...], fingerprint: str, pixels: str) -> bytes:
    """What precedes the pixels in a safetensors file of one tensor; as long for any digest."""
    tensor = {
        "dtype": "U8",
        "shape": shape,
        "data_offsets": [0, int(np.prod(shape, dtype=np.int64))],
    }
    text = json.dumps(
        {"__metadata__": {"fingerprint": fingerprint, DIGEST: pixels}, "images": tensor}
    ).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _announce(title: str, path: Path, places: list[Path], count: int) -> None:
    note = "" if path == places[0] else f" ({places[0].parent} cannot be written)"
    _console().print(f"decoding {count} images of {title} once, into {path}{note}")


def _progress(title: str, chunks: Iterable[Bytes], count: int) -> Iterator[Bytes]:
    """`chunks`, counted on standard error where that is a terminal."""
    from rich.progress import Progress  # slow to import, and needed once in the life of a data set

    console = _console()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=count)
        for chunk in chunks:
            yield chunk
            bar.advance(task, len(chunk))


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
