"""Tiny-ImageNet (Stanford CS231n, 2015) as its archive unpacks; validation images are for tests."""

import re
from pathlib import Path

from fedwsq.core.errors import DataError
from fedwsq.core.text import read_text
from fedwsq.data.dataset import Dataset, data_root, warn_if_partial
from fedwsq.data.images import Form, Labelled, decode_files, image_names

TITLE = "Tiny-ImageNet"
MAX_TEXT_BYTES = 2**24  # the longest of its lists has 2.6 MB
FOLDER = "tiny-imagenet-200"
HELP = (
    "`fedwsq fetch tinyimagenet` gets it, or unpack tiny-imagenet-200.zip from "
    "http://cs231n.stanford.edu there, "
    "or point elsewhere with data.root=DIR or the environment variable FEDWSQ_DATA"
)
FORM = Form(64, 64, rule=f"those of {TITLE} have 64x64; unpack it again")


def tinyimagenet(root: str = "") -> Dataset:
    """Tiny-ImageNet: 64x64 photos of 200 classes, decoded once into a file beside its folder."""
    folder = _find(data_root(root).resolve())
    labels = _labels(folder / "wnids.txt")
    listed = _train(folder, labels)
    annotated = _test(folder, labels)
    train, test = decode_files(TITLE, folder, listed, annotated, FORM)
    warn_if_partial(TITLE, len(train), 100_000, f"{folder}/train")
    warn_if_partial(TITLE, len(test), 10_000, f"{folder}/val")
    return Dataset(
        train=train,
        test=test,
        classes=len(labels),
        mean=(0.4802, 0.4481, 0.3975),  # mean and std as in the published code
        std=(0.2770, 0.2691, 0.2821),
        augment=True,
        class_names=_class_names(folder / "words.txt", labels),
    )


def _find(root: Path) -> Path:
    """The folder that was unpacked: under `root`, or `root` itself."""
    for folder in (root / FOLDER, root):
        if (folder / "wnids.txt").is_file():
            return folder
    raise DataError(f"no {TITLE}: neither {root / FOLDER} nor {root} has a wnids.txt; {HELP}")


def _labels(path: Path) -> dict[str, int]:
    """The classes, numbered as they are listed."""
    wnids = _lines(path)
    for number, wnid in enumerate(wnids, 1):
        if not re.fullmatch(r"n\d{8}", wnid):
            raise DataError(
                f"{path} line {number} is {wnid[:40]!r}, not a class such as n01443537; "
                "unpack it again"
            )
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    if not labels or len(labels) < len(wnids):
        raise DataError(
            f"{path} must name classes, each once; it has {len(wnids)} lines; unpack it again"
        )
    return labels


def _class_names(path: Path, labels: dict[str, int]) -> tuple[str, ...]:
    """The first word for each class; as they are listed where the file of words is missing."""
    if not path.is_file():
        return tuple(labels)
    words = {}
    for line in _text(path).splitlines():
        wnid, _, synonyms = line.partition("\t")
        words[wnid] = synonyms.partition(",")[0]
    return tuple(words.get(wnid) or wnid for wnid in labels)


def _train(folder: Path, labels: dict[str, int]) -> Labelled:
    """Path and label of every training image: class by class, then by file name."""
    # A class without a folder, or the other way round: an archive that was half unpacked.
    present = {entry.name for entry in (folder / "train").glob("n*") if entry.is_dir()}
    odd = min(present ^ labels.keys(), default=None)
    if odd in present:
        lack = f"wnids.txt does not name the class train/{odd}"
        raise DataError(f"{folder} is incomplete: {lack}; {HELP}")
    if odd is not None:
        raise DataError(f"{folder} is incomplete: train/{odd} is missing; {HELP}")

    found: Labelled = {}
    for wnid, label in labels.items():
        names = image_names(folder / "train" / wnid / "images")
        if not names:
            raise DataError(f"{folder} is incomplete: train/{wnid}/images holds no image; {HELP}")
        found |= {f"train/{wnid}/images/{name}": label for name in names}
    return found


def _test(folder: Path, labels: dict[str, int]) -> Labelled:
    """Path and label of every validation image, in the order of the annotations."""
    annotations = folder / "val" / "val_annotations.txt"
    missing = set(image_names(folder / "val" / "images"))
    found: Labelled = {}
    for number, line in enumerate(_lines(annotations), 1):
        name, wnid, *_ = [*line.split("\t"), ""]  # where the object is follows, and is not used
        where = f"{annotations} line {number}"
        if wnid not in labels:
            raise DataError(f"{where} names the class {wnid[:40]!r}, which wnids.txt does not have")
        path = f"val/images/{name}"
        if path in found:
            raise DataError(f"{where} names the image {name[:40]!r} twice; {HELP}")
        if name not in missing:
            raise DataError(
                f"{where} names the image {name[:40]!r} but it is not in val/images; {HELP}"
            )
        missing.remove(name)
        found[path] = labels[wnid]
    if missing:
        raise DataError(
            f"{annotations} has no line for {min(missing)}, which is in val/images; {HELP}"
        )
    if not found:
        raise DataError(f"{folder} is incomplete: val/images holds no image; {HELP}")
    return found


def _lines(path: Path) -> list[str]:
    text = _text(path)
    if not text.isascii():
        raise DataError(f"cannot read {path}: it is not plain text; {HELP}")
    return text.splitlines()


def _text(path: Path) -> str:
    try:
        return read_text(path, MAX_TEXT_BYTES, errors="replace")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}; {HELP}") from error
