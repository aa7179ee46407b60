"""Image files as arrays: listed in one order everywhere, decoded with Pillow."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data.cache import Bytes, cached, digest
from fedwsq.data.dataset import Examples

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
# Pillow knows more; some of those run other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 2**26  # of one image; decoded it takes 4 bytes each
CHUNK = 256  # images decoded side by side
CHUNK_BYTES = 2**28  # as much of them as is held at once
THREADS = 8
MAX_SIDE = 2**13
Labelled = dict[str, int]  # path of an image -> label


@dataclass(frozen=True)
class Form:
    """The size that every image of a set has."""

    width: int
    height: int
    # Scale and crop other images to it, about their centre, rather than refuse them.
    fit: bool = False
    rule: str = ""  # why another size is refused, and the way out

    @property
    def chunk(self) -> int:
        """How many images are decoded before they are written."""
        return max(1, min(CHUNK, CHUNK_BYTES // (3 * self.width * self.height)))


def stored_form(first: "Image", name: object) -> Form:
    """The size of the first image, called `name`, is the size of all."""
    rule = (
        f"{name} has {first.width}x{first.height}; all must have one size, so scale them, "
        "for example with data.size=64"
    )
    return Form(first.width, first.height, rule=rule)


def check_size(size: int) -> None:
    """Of the setting that scales images."""
    if not 0 <= size <= MAX_SIDE:
        raise ConfigError(
            f"size is {size}, must be 0 (as stored) or a number of pixels such as 64, at most "
            f"{MAX_SIDE}"
        )


def image_names(folder: Path) -> list[str]:
    """The image files in `folder` by name: the order of a listing is not the same everywhere."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file()]
    except OSError as error:
        raise DataError(f"cannot list the images in {folder}: {error.strerror or error}") from error
    return sorted(
        name for name in names if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
    )


def decode_files(
    title: str, folder: Path, train: Labelled, test: Labelled, form: Form
) -> tuple[Examples, Examples]:
    """Images under `folder` as examples in the same order, mapped, and decoded at most once."""
    paths = [*train, *test]
    shape = (len(paths), 3, form.height, form.width)
    mark = _fingerprint(folder, paths, form)
    images = cached(title, folder, mark, shape, _chunks(folder, paths, form))
    labels = torch.tensor([*train.values(), *test.values()])
    count = len(train)
    kept = Examples([images[:count]], labels[:count])
    return kept, Examples([images[count:]], labels[count:])


def open_image(file: Path | IO[bytes], name: object) -> "Image":
    """A decoded image, right side up."""
    from PIL import Image, ImageOps  # only image data sets need it

    try:
        with Image.open(file, formats=FORMATS) as image:  # only its header is read by now
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels, most are {MAX_PIXELS:,}")
            return ImageOps.exif_transpose(image)
    except Exception as error:  # a damaged image can raise nearly anything
        raise DataError(f"cannot decode {name}: {error}; replace it, or take it away") from error


def to_pixels(image: "Image", name: object, form: Form) -> Bytes:
    """An image as uint8 [3, height, width]; gray becomes RGB, and transparency is lost."""
    from PIL import Image, ImageOps

    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise DataError(
            f"{name} has more than 8 bits a channel (mode {image.mode}); convert it, or use "
            "data.name=npz"
        )
    size = (form.width, form.height)
    if image.size != size and not form.fit:
        raise DataError(f"{name} has {image.width}x{image.height} pixels, but {form.rule}")
    image = image.convert("RGB")
    if image.size != size:
        image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _fingerprint(folder: Path, paths: Sequence[str], form: Form) -> str:
    """Changes whenever the decoded pixels might."""
    import PIL

    marks = [f"1 {PIL.__version__} {form.width}x{form.height} {form.fit}"]
    for path in paths:
        try:
            status = os.stat(folder / path)
        except OSError as error:
            raise DataError(f"cannot read {folder / path}: {error.strerror or error}") from error
        marks.append(f"{path}\0{status.st_size}\0{status.st_mtime_ns}")
    return digest("\n".join(marks))


def _chunks(folder: Path, paths: Sequence[str], form: Form) -> Iterator[Bytes]:
    def read(path: str) -> Bytes:
        full = folder / path
        return to_pixels(open_image(full, full), full, form)

    # Pillow decodes without holding the interpreter.
    with ThreadPoolExecutor(min(THREADS, form.chunk)) as pool:
        for start in range(0, len(paths), form.chunk):
            images = pool.map(read, paths[start : start + form.chunk])
            yield np.stack(list(images))
