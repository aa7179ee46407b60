"""The user's own images: a folder for each class."""

from pathlib import Path

import torch

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data.dataset import Dataset, Examples, check_share, pixel_stats
from fedwsq.data.images import EXTENSIONS, Form, decode_files, image_names, open_image, stored_form
from fedwsq.data.partition import hold_out

Labelled = list[tuple[str, int]]  # path under the root, label


def imagefolder(root: str, size: int = 0, test: float = 0.2) -> Dataset:
    """Your images: ROOT/train/CLASS/* and ROOT/test/CLASS/*, or ROOT/CLASS/* with a share `test` held out.

    Classes are numbered in the order of their names. `size` scales and crops every image to size x size; without it all
    must have one size already. Images are augmented; `data.augment=false` where a flip or a turn changes the class.
    """
    if size < 0:
        raise ConfigError(f"size is {size}, must be 0 (as stored) or a number of pixels such as 64")
    folder = Path(root).expanduser().resolve()
    classes, train, held_out = _list(folder, test)
    paths = [path for path, _ in train + held_out]
    first = folder / paths[0]
    form = Form(size, size, fit=True) if size else stored_form(open_image(first, first), first)
    images = decode_files(str(folder), folder, paths, form)
    y = torch.tensor([label for _, label in train + held_out])
    examples = Examples([images[: len(train)]], y[: len(train)])
    mean, std = pixel_stats(examples)
    return Dataset(
        train=examples,
        test=Examples([images[len(train) :]], y[len(train) :]),
        classes=len(classes),
        mean=mean,
        std=std,
        augment=True,
    )


def _list(folder: Path, share: float) -> tuple[list[str], Labelled, Labelled]:
    """The classes, the training images and the test images."""
    if not folder.is_dir():
        raise DataError(
            f"no images: {folder} is no folder; it should hold one folder for each class"
        )
    if not (folder / "train").is_dir():
        classes = _classes(folder)
        found = _labelled(folder, "", classes)
        check_share(share, len(found))
        kept, held = hold_out(len(found), share, seed=0)
        return classes, [found[i] for i in kept.tolist()], [found[i] for i in held.tolist()]
    name = next((name for name in ("test", "val") if (folder / name).is_dir()), None)
    if name is None:
        raise DataError(f"{folder} has a folder train but neither test nor val; add one of them")
    classes = _classes(folder / "train")
    strange = [each for each in _classes(folder / name) if each not in classes]
    if strange:
        raise DataError(
            f"{folder / name / strange[0]} is a class that {folder / 'train'} does not have; add it, or move it"
        )
    tested = _labelled(folder, f"{name}/", classes, missing_ok=True)
    return classes, _labelled(folder, "train/", classes), tested


def _classes(folder: Path) -> list[str]:
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise DataError(
            f"{folder} holds no folders; it should hold one for each class, with images in it"
        )
    return names


def _labelled(folder: Path, prefix: str, classes: list[str], missing_ok: bool = False) -> Labelled:
    found: Labelled = []
    for label, name in enumerate(classes):
        place = folder / f"{prefix}{name}"
        if missing_ok and not place.is_dir():
            continue  # a class need not be tested
        names = image_names(place)
        if not names:
            raise DataError(
                f"{place} holds no image ({', '.join(EXTENSIONS)}); add some, or take the folder away"
            )
        found += [(f"{prefix}{name}/{each}", label) for each in names]
    return found
