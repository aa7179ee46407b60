"""The user's own images: a folder for each class."""

from pathlib import Path

from fedwsq.core.errors import DataError
from fedwsq.data.dataset import Dataset, check_share, pixel_stats
from fedwsq.data.images import (
    EXTENSIONS,
    Form,
    Labelled,
    check_size,
    decode_files,
    image_names,
    open_image,
    stored_form,
)
from fedwsq.data.partition import hold_out


def imagefolder(root: str, size: int = 0, test: float = 0.2) -> Dataset:
    """Your images: ROOT/train/CLASS/* and ROOT/test/CLASS/*, or ROOT/CLASS/* with `test` held out.

    Classes are numbered in the order of their names; `test` is a share. `size` scales and crops
    every image to size x size; without it all must have one size already. Images are augmented;
    `data.augment=false` where a flip or a turn changes the class.
    """
    check_size(size)
    folder = Path(root).expanduser().resolve()
    kept, held = _list(folder, test)
    form = Form(size, size, fit=True)
    if not size:
        first = folder / next(iter(kept))
        form = stored_form(open_image(first, first), first)

    train, tested = decode_files(str(folder), folder, kept, held, form)
    mean, std = pixel_stats(train)
    # Every class has an image, in the folder that names it.
    names = {label: path.split("/")[-2] for path, label in (kept | held).items()}
    ordered = tuple(names[label] for label in range(len(names)))
    return Dataset(train, tested, len(names), mean, std, augment=True, class_names=ordered)


def _list(folder: Path, share: float) -> tuple[Labelled, Labelled]:
    """The images to train on and to test on; every class has some."""
    if not folder.is_dir():
        raise DataError(
            f"no images: {folder} is no folder; it should hold one folder for each class"
        )
    if (folder / "train").is_dir():
        return _list_sets(folder)
    found = list(_labelled(folder, _labels(folder)).items())
    check_share(share, len(found))
    # The same share in every run: what is tested must not depend on a seed.
    kept, held = hold_out(len(found), share, seed=0)
    train = [found[number] for number in kept.tolist()]
    test = [found[number] for number in held.tolist()]
    return dict(train), dict(test)


def _list_sets(folder: Path) -> tuple[Labelled, Labelled]:
    """Of a folder with a training and a test set of its own."""
    tests = [name for name in ("test", "val") if (folder / name).is_dir()]
    if not tests:
        raise DataError(f"{folder} has a folder train but neither test nor val; add one of them")
    labels = _labels(folder / "train")
    tested = _labels(folder / tests[0])  # a class need not be tested
    strange = sorted(tested.keys() - labels.keys())
    if strange:
        raise DataError(
            f"{folder / tests[0] / strange[0]} is a class that {folder / 'train'} does not have; "
            "add it, or move it"
        )
    tested = {name: labels[name] for name in tested}
    test = _labelled(folder, tested, f"{tests[0]}/")
    return _labelled(folder, labels, "train/"), test


def _labels(folder: Path) -> dict[str, int]:
    """The classes in a folder, numbered in the order of their names."""
    folders = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    names = sorted(name for name in folders if not name.startswith("."))
    if not names:
        raise DataError(
            f"{folder} holds no folders; it should hold one for each class, with images in it"
        )
    return {name: label for label, name in enumerate(names)}


def _labelled(folder: Path, labels: dict[str, int], prefix: str = "") -> Labelled:
    found: Labelled = {}
    for name, label in labels.items():
        place = folder / f"{prefix}{name}"
        names = image_names(place)
        if not names:
            raise DataError(
                f"{place} holds no image ({', '.join(EXTENSIONS)}); "
                "add some, or take the folder away"
            )
        found |= {f"{prefix}{name}/{each}": label for each in names}
    return found
