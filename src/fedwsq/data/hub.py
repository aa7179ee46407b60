"""Images of the Hugging Face hub, from its local cache or a local folder; nothing is downloaded unasked."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data.cache import Bytes, cached, digest
from fedwsq.data.dataset import Dataset, Examples, pixel_stats
from fedwsq.data.images import CHUNK, Form, open_image, stored_form, to_pixels


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
    """Images of the Hugging Face hub (REPO is OWNER/NAME or a local folder) that are in its cache; or `download`.

    `train` and `test` are splits, slices such as "train[80%:]" included; `image` and `label` are columns. `size` scales
    and crops every image to size x size. Images are augmented unless `data.augment=false`.
    """
    if size < 0:
        raise ConfigError(f"size is {size}, must be 0 (as stored) or a number of pixels such as 64")
    tables = [_table(repo, split, config, revision, download) for split in (train, test)]
    for table, split in zip(tables, (train, test), strict=True):
        if not table.features.keys() >= {image, label} or not len(table):
            has = ", ".join(table.features)
            raise DataError(
                f"{repo}: {split} has {len(table)} rows of {has}; set data.image and data.label to two of them"
            )
    labels = [np.asarray(table.with_format("numpy")[label][:]) for table in tables]
    classes = _classes(tables[0].features[label], labels, f"{repo}: {label}")
    first = _cells(tables[0], image, repo, 0, 1)[0]
    form = Form(size, size, fit=True) if size else stored_form(first, f"{repo}: {image} 0")
    kept, tested = (
        Examples([_images(table, image, form, repo)], torch.from_numpy(y.astype(np.int64)))
        for table, y in zip(tables, labels, strict=True)
    )
    mean, std = pixel_stats(kept)
    return Dataset(kept, tested, classes, mean, std, augment=True)


def _table(repo: str, split: str, config: str, revision: str, download: bool) -> Any:
    """One split, as the `datasets` package holds it: mapped from a file."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            "data.name=hub needs the package datasets: pip install 'fedwsq[hub]'"
        ) from None
    with _offline(not download):
        try:
            if (Path(repo) / "dataset_dict.json").is_file():
                return datasets.load_from_disk(repo)[split]
            return datasets.load_dataset(
                repo, config or None, split=split, revision=revision or None
            )
        except (
            Exception
        ) as error:  # of many kinds: no such data set, split or config, no network, damaged files
            hint = (
                "" if download else "; data.download=true may fetch what is not in the local cache"
            )
            reason = (str(error) or type(error).__name__).splitlines()[0]
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


def _classes(feature: Any, labels: list[Any], name: str) -> int:
    """How many classes there are; every label is one of them."""
    if any(y.dtype.kind not in "iu" or y.ndim != 1 for y in labels):
        raise DataError(
            f"{name} is a column of {labels[0].dtype}, must be integers, one a row; data.label names another column"
        )
    low, high = min(int(y.min()) for y in labels), max(int(y.max()) for y in labels)
    classes = int(getattr(feature, "num_classes", None) or high + 1)
    if not 0 <= low <= high < classes:
        raise DataError(
            f"{name} holds labels from {low} to {high}, must be 0 to {classes - 1}; is one split unlabelled?"
        )
    return classes


def _images(table: Any, column: str, form: Form, repo: str) -> torch.Tensor:
    """The decoded images of a split, mapped."""
    files = [file["filename"] for file in table.cache_files]
    marks = [f"{path} {os.stat(path).st_size} {os.stat(path).st_mtime_ns}" for path in files]
    mark = digest("\n".join([table._fingerprint, column, str(form), *marks]))
    # Slices of one split share a file, so the name says which slice this is.
    source = Path(files[0]).with_name(
        f"{Path(files[0]).name}-{digest(table._fingerprint + column)[:16]}"
    )
    return cached(
        repo,
        source,
        mark,
        (len(table), 3, form.height, form.width),
        _chunks(table, column, form, repo),
    )


def _chunks(table: Any, column: str, form: Form, repo: str) -> Iterator[Bytes]:
    for start in range(0, len(table), CHUNK):
        cells = _cells(table, column, repo, start, start + CHUNK)
        yield np.stack(
            [
                to_pixels(image, f"{repo}: {column} {row}", form)
                for row, image in enumerate(cells, start)
            ]
        )


def _cells(table: Any, column: str, repo: str, start: int, stop: int) -> list[Any]:
    """The images of some rows, opened here rather than by `datasets`: only common formats, and right side up."""
    from datasets import Image

    if not isinstance(table.features[column], Image):
        raise DataError(
            f"{repo}: {column} is {table.features[column]}, not images; data.image names another column"
        )
    cells = table.cast_column(column, Image(decode=False))[start:stop][column]
    images = []
    for row, cell in enumerate(cells, start):
        stored = cell or {"bytes": b""}  # a missing image is one that cannot be decoded
        file = Path(stored["path"]) if stored["bytes"] is None else io.BytesIO(stored["bytes"])
        images.append(open_image(file, f"{repo}: {column} {row}"))
    return images
