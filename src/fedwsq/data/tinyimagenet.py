"""Tiny-ImageNet (Stanford CS231n, 2015) as its archive unpacks; the validation images are the test set."""

import re
from pathlib import Path

import torch

from fedwsq.core.errors import DataError
from fedwsq.data.dataset import Dataset, Examples, data_root, warn_if_partial
from fedwsq.data.images import Form, decode_files, image_names

TITLE = "Tiny-ImageNet"
FOLDER = "tiny-imagenet-200"
HELP = (
    "`fedwsq fetch tinyimagenet` gets it, or unpack tiny-imagenet-200.zip from http://cs231n.stanford.edu there, "
    "or point elsewhere with data.root=DIR or the environment variable FEDWSQ_DATA"
)
FORM = Form(64, 64, rule=f"those of {TITLE} have 64x64; unpack it again")


def tinyimagenet(root: str = "") -> Dataset:
    """Tiny-ImageNet: 64x64 photos of 200 classes, decoded once into a file beside its folder."""
    folder = _find(data_root(root).resolve())
    labels = {wnid: label for label, wnid in enumerate(_wnids(folder / "wnids.txt"))}
    train, test = _train(folder, labels), _test(folder, labels)
    images = decode_files(TITLE, folder, [path for path, _ in train + test], FORM)
    y = torch.tensor([label for _, label in train + test])
    count = len(train)
    warn_if_partial(TITLE, count, 100_000, f"{folder}/train")
    warn_if_partial(TITLE, len(test), 10_000, f"{folder}/val")
    return Dataset(
        train=Examples([images[:count]], y[:count]),
        test=Examples([images[count:]], y[count:]),
        classes=len(labels),
        mean=(0.4802, 0.4481, 0.3975),  # mean and std as in the published code
        std=(0.2770, 0.2691, 0.2821),
        augment=True,
    )


def _find(root: Path) -> Path:
    """The folder that was unpacked: under `root`, or `root` itself."""
    for folder in (root / FOLDER, root):
        if (folder / "wnids.txt").is_file():
            return folder
    raise DataError(f"no {TITLE}: neither {root / FOLDER} nor {root} has a wnids.txt; {HELP}")


def _wnids(path: Path) -> list[str]:
    """The classes, in the order that numbers them."""
    wnids = _lines(path)
    for number, wnid in enumerate(wnids, 1):
        if not re.fullmatch(r"n\d{8}", wnid):
            raise DataError(
                f"{path} line {number} is {wnid[:40]!r}, not a class such as n01443537; unpack it again"
            )
    if not wnids or len(set(wnids)) < len(wnids):
        raise DataError(
            f"{path} must name classes, each once; it has {len(wnids)} lines; unpack it again"
        )
    return wnids


def _train(folder: Path, labels: dict[str, int]) -> list[tuple[str, int]]:
    """Path and label of every training image: class by class, then by file name."""
    present = {entry.name for entry in (folder / "train").glob("n*") if entry.is_dir()}
    if present != labels.keys():
        wnid = min(present ^ labels.keys())
        lack = (
            f"train/{wnid} is missing"
            if wnid in labels
            else f"wnids.txt does not name the class train/{wnid}"
        )
        raise DataError(f"{folder} is incomplete: {lack}; {HELP}")
    found = []
    for wnid, label in labels.items():
        names = image_names(folder / "train" / wnid / "images")
        if not names:
            raise DataError(f"{folder} is incomplete: train/{wnid}/images holds no image; {HELP}")
        found += [(f"train/{wnid}/images/{name}", label) for name in names]
    return found


def _test(folder: Path, labels: dict[str, int]) -> list[tuple[str, int]]:
    """Path and label of every validation image, in the order of the annotations."""
    annotations = folder / "val" / "val_annotations.txt"
    images = set(image_names(folder / "val" / "images"))
    found: dict[str, int] = {}
    for number, line in enumerate(_lines(annotations), 1):
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in labels:
            raise DataError(
                f"{annotations} line {number} names the class {wnid[:40]!r}, which wnids.txt does not have"
            )
        if name not in images or name in found:
            problem = "twice" if name in found else "but it is not in val/images"
            raise DataError(
                f"{annotations} line {number} names the image {name[:40]!r} {problem}; {HELP}"
            )
        found[name] = labels[wnid]
    if images - found.keys():
        raise DataError(
            f"{annotations} has no line for {min(images - found.keys())}, which is in val/images; {HELP}"
        )
    if not found:
        raise DataError(f"{folder} is incomplete: val/images holds no image; {HELP}")
    return [(f"val/images/{name}", label) for name, label in found.items()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; {HELP}") from error
