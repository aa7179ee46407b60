"""Images decoded once: a file that later loads, and all processes of a machine, map instead.

The file is used only if it was made from the same sources (`fingerprint`) and its pixels have the
digest it states; a stale or damaged one is made again. It appears whole or not at all, so several
processes may make it at the same time.
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

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
    """A mapped uint8 tensor [n, c, h, w], filled with `chunks` of it in order.

    They are asked for only where needed. The file lies beside `source`, or in the user's cache
    folder where nothing can be written there.
    """
    kind = "decoded-{3}x{2}.safetensors".format(*shape)
    beside = source.with_name(f"{source.name}.{kind}")
    caches = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    elsewhere = Path(caches, "fedwsq", f"{digest(str(source))[:16]}.{kind}")
    cache = _Cache(title, fingerprint, shape, (beside, elsewhere))
    for path in cache.places:
        images = cache.read(path)
        if images is not None:
            return images
    return cache.write(chunks)


def digest(text: str) -> str:
    """Of a text, in hex."""
    return hashlib.new(DIGEST, text.encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True)
class _Cache:
    title: str
    fingerprint: str
    shape: tuple[int, ...]
    places: tuple[Path, Path]

    def read(self, path: Path) -> Tensor | None:
        """The images in a cache file, or None if it is missing, stale or damaged."""
        try:
            with safe_open(path, "pt") as file:  # maps it, and refuses a wrong length
                stated: dict[str, str] = file.metadata() or {}
                if stated.get("fingerprint") != self.fingerprint:
                    return None
                images: Tensor = file.get_tensor("images")
        except (OSError, SafetensorError, RuntimeError):  # the last: more than can be mapped
            return None
        if (str(images.dtype), tuple(images.shape)) != ("torch.uint8", self.shape):
            return None
        if hashlib.new(DIGEST, images.numpy().data).hexdigest() != stated.get(DIGEST):
            return None
        return images

    def write(self, chunks: Iterable[Bytes]) -> Tensor:
        """Make the cache file in the first place that takes it."""
        path, temporary = self._open()
        try:
            self._require_room(path)
            with temporary as file:
                self._announce(path)
                self._fill(file, chunks)
            # Before others can replace it; the mapping stays.
            images = self.read(Path(temporary.name))
            if images is None:
                raise DataError(
                    f"the decoded {self.title} cannot be read back from {path.parent}; "
                    "check the disk, and try again"
                )
            os.chmod(temporary.name, 0o644)  # other users of a shared data folder may map it too
            os.replace(temporary.name, path)
            return images
        except OSError as error:
            raise DataError(
                f"cannot write the decoded {self.title} to {path}: {error.strerror or error}"
            ) from error
        finally:
            Path(temporary.name).unlink(missing_ok=True)

    def _open(self) -> tuple[Path, "tempfile._TemporaryFileWrapper[bytes]"]:
        """The first place whose folder can be written, and an open file in that folder."""
        for path in self.places:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # A name of its own: another process may be at it, too.
                return path, tempfile.NamedTemporaryFile(
                    dir=path.parent, prefix=f"{path.name}.", delete=False
                )
            except OSError as error:
                reason = error.strerror or error
        tried = " nor ".join(str(path.parent) for path in self.places)
        raise DataError(
            f"{self.title} is decoded once into a file, but neither {tried} can be written "
            f"({reason}); point XDG_CACHE_HOME at a folder that can"
        )

    def _require_room(self, path: Path) -> None:
        """Refuse before the disk is full: small files can hold very large images."""
        needed = math.prod(self.shape)
        free = shutil.disk_usage(path.parent).free
        if needed > free:
            raise DataError(
                f"the decoded {self.title} takes {needed:,} bytes ({self.shape[0]} images of "
                f"{self.shape[3]}x{self.shape[2]}), and {path.parent} has {free:,} free; make "
                "room, or scale images with data.size=64"
            )

    def _announce(self, path: Path) -> None:
        beside = self.places[0]
        note = ""
        if path != beside:
            note = f" ({beside.parent} cannot be written)"
        count = self.shape[0]
        _console().print(f"decoding {count} images of {self.title} once, into {path}{note}")

    def _fill(self, file: IO[bytes], chunks: Iterable[Bytes]) -> None:
        """The header, the pixels, and the header again when their digest is known."""
        file.write(self._header("0" * 64))
        seen = hashlib.new(DIGEST)
        for chunk in _progress(self.title, chunks, self.shape[0]):
            pixels = np.ascontiguousarray(chunk)
            seen.update(pixels.data)
            file.write(pixels.data)
        file.seek(0)
        file.write(self._header(seen.hexdigest()))
        file.flush()
        os.fsync(file.fileno())

    def _header(self, pixels: str) -> bytes:
        """What precedes the pixels in a safetensors file of one tensor; as long for any digest."""
        size = math.prod(self.shape)
        fields = {
            "__metadata__": {"fingerprint": self.fingerprint, DIGEST: pixels},
            "images": {"dtype": "U8", "shape": self.shape, "data_offsets": [0, size]},
        }
        text = json.dumps(fields).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


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
