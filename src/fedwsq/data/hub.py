"""Images of the Hugging Face hub, from its local cache or a folder; no download unasked."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedwsq.core.errors import DataError
from fedwsq.data.cache import Bytes, cached, digest
from fedwsq.data.dataset import Dataset, Examples, pixel_stats
from fedwsq.data.images import Form, check_size, open_image, stored_form, to_pixels

if TYPE_CHECKING:
    from PIL.Image import Image


def hub(
    repo: str,
    train: str = "train",
    test: str = "test",
    image: str = "image",
    label: str = "label",
    config: str = "",
    revision: str = "",
    size: int = 0,
    download: bool = False,
) -> Dataset:
    """Images of the Hugging Face hub that are in its local cache; or `download`.

    REPO is OWNER/NAME or a local folder. `train` and `test` are splits, slices such as
    "train[80%:]" included; `image` and `label` are columns. `size` scales and crops every image to
    size x size. Images are augmented unless `data.augment=false`.
    """
    check_size(size)
    tables = [_table(repo, split, config, revision, download) for split in (train, test)]
    for table, split in zip(tables, (train, test), strict=True):
        if not table.features.keys() >= {image, label} or not len(table):
            raise DataError(
                f"{repo}: {split} has {len(table)} rows of {', '.join(table.features)}; "
                "set data.image and data.label to two of them"
            )
    labels = [np.asarray(table.with_format("numpy")[label][:]) for table in tables]
    classes = _classes(tables[0].features[label], labels, f"{repo}: {label}")

    columns = [_Column(table, image, repo) for table in tables]
    first = next(columns[0].opened(0, 1))  # or an error, before anything is decoded
    form = Form(size, size, fit=True)
    if not size:
        form = stored_form(first, columns[0].name(0))
    examples = [
        Examples([column.decoded(form)], torch.from_numpy(y.astype(np.int64)))
        for column, y in zip(columns, labels, strict=True)
    ]
    mean, std = pixel_stats(examples[0])
    names = tuple(getattr(tables[0].features[label], "names", None) or ())
    return Dataset(examples[0], examples[1], classes, mean, std, augment=True, class_names=names)


def _table(repo: str, split: str, config: str, revision: str, download: bool) -> Any:
    """One split, as the `datasets` package holds it: mapped from a file."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            "data.name=hub needs the package datasets: pip install 'fedwsq[hub]'"
        ) from None
    try:
        with _offline(not download):
            if (Path(repo) / "dataset_dict.json").is_file():
                return datasets.load_from_disk(repo)[split]
            return datasets.load_dataset(
                repo, config or None, split=split, revision=revision or None
            )
    # Of many kinds: no such data set, split or config, no network, damaged files.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        hint = "; data.download=true may fetch what is not in the local cache"
        if download:
            hint = ""
        raise DataError(f"cannot load {split} of {repo}: {reason}{hint}") from error


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """The hub's offline mode, whatever the environment said when its packages were imported."""
    from datasets import config
    from huggingface_hub import constants

    before = [(module, module.HF_HUB_OFFLINE) for module in (config, constants)]
    try:
        for module, was in before:
            module.HF_HUB_OFFLINE = was or wanted
        yield
    finally:
        for module, was in before:
            module.HF_HUB_OFFLINE = was


def _classes(feature: Any, labels: list[npt.NDArray[Any]], name: str) -> int:
    """How many classes there are; every label is one of them."""
    if any(y.dtype.kind not in "iu" or y.ndim != 1 for y in labels):
        raise DataError(
            f"{name} is a column of {labels[0].dtype}, must be integers, one a row; "
            "data.label names another column"
        )
    low = min(int(y.min()) for y in labels)
    high = max(int(y.max()) for y in labels)
    classes = int(getattr(feature, "num_classes", None) or high + 1)
    if not 0 <= low <= high < classes:
        raise DataError(
            f"{name} holds labels from {low} to {high}, must be 0 to {classes - 1}; "
            "is one split unlabelled?"
        )
    return classes


@dataclass(frozen=True)
class _Column:
    """The images of one split."""

    table: Any
    column: str
    repo: str

    def name(self, row: int) -> str:
        """Of an image, for people."""
        return f"{self.repo}: {self.column} {row}"

    def decoded(self, form: Form) -> torch.Tensor:
        """All images, mapped."""
        fingerprint = self.table._fingerprint
        files = [Path(file["filename"]) for file in self.table.cache_files]
        marks = [fingerprint, self.column, str(form)]
        for path in files:
            status = os.stat(path)
            marks.append(f"{path} {status.st_size} {status.st_mtime_ns}")
        # Slices of one split share a file, so the name says which slice this is.
        which = digest(fingerprint + self.column)[:16]
        source = files[0].with_name(f"{files[0].name}-{which}")
        shape = (len(self.table), 3, form.height, form.width)
        return cached(self.repo, source, digest("\n".join(marks)), shape, self._chunks(form))

    def opened(self, start: int, stop: int) -> "Iterator[Image]":
        """Some images, opened here, not by `datasets`: only common formats, and right side up."""
        from datasets import Image

        feature = self.table.features[self.column]
        if not isinstance(feature, Image):
            raise DataError(
                f"{self.repo}: {self.column} is {feature}, not images; "
                "data.image names another column"
            )
        undecoded = self.table.cast_column(self.column, Image(decode=False))
        for row, cell in enumerate(undecoded[start:stop][self.column], start):
            stored = cell or {"bytes": b""}  # a missing image is one that cannot be decoded
            if stored["bytes"] is None:
                yield open_image(Path(stored["path"]), self.name(row))
            else:
                yield open_image(io.BytesIO(stored["bytes"]), self.name(row))

    def _chunks(self, form: Form) -> Iterator[Bytes]:
        for start in range(0, len(self.table), form.chunk):
            images = self.opened(start, start + form.chunk)
            rows = enumerate(images, start)
            yield np.stack([to_pixels(image, self.name(row), form) for row, image in rows])
