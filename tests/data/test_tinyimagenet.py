import io
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedwsq.core.errors import DataError
from fedwsq.data.dataset import pixel_stats
from fedwsq.data.tinyimagenet import FOLDER, tinyimagenet

WNIDS = ["n02124075", "n01443537", "n04067472"]  # not sorted: their position is the label
pytestmark = pytest.mark.filterwarnings("ignore:Tiny-ImageNet.*published:UserWarning")


def jpeg(seed: int, mode: str = "RGB", size: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG")
    return buffer.getvalue()


def decode(content: bytes) -> torch.Tensor:
    return torch.from_numpy(
        np.array(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)
    )


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Three classes, images 0, 10 and 2 of each (10 sorts before 2), and four validation images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    folder = tmp_path / FOLDER
    for label, wnid in enumerate(WNIDS):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in (2, 0, 10):
            (images / f"{wnid}_{number}.JPEG").write_bytes(jpeg(100 * label + number))
        (images.parent / f"{wnid}_boxes.txt").write_text("")
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, label in enumerate((2, 0, 0, 1)):
        (folder / "val" / "images" / f"val_{number}.JPEG").write_bytes(
            jpeg(1000 + number, "L" if number == 1 else "RGB")
        )
        lines.append(f"val_{number}.JPEG\t{WNIDS[label]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    return folder


def test_images_and_labels_in_a_fixed_order(folder):
    for root in (folder, folder.parent):
        data = tinyimagenet(str(root))
        x, y = data.train.take(torch.arange(9))
        assert y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        for row, seed in enumerate([0, 10, 2, 100, 110, 102, 200, 210, 202]):
            assert torch.equal(x[row], decode(jpeg(seed)))
        x, y = data.test.take(torch.arange(4))
        assert y.tolist() == [2, 0, 0, 1]
        assert torch.equal(x[3], decode(jpeg(1003)))
    assert (data.classes, data.shape, data.augment) == (3, (3, 64, 64), True)
    assert (data.mean, data.std) == ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))


def test_classes_are_called_by_their_first_word(folder):
    assert tinyimagenet(str(folder)).class_names == tuple(WNIDS)
    words = "n00001740\tentity\nn01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n"
    (folder / "words.txt").write_text(words)
    assert tinyimagenet(str(folder)).class_names == ("Egyptian cat", "goldfish", "n04067472")


def test_gray_becomes_rgb(folder):
    x, _ = tinyimagenet(str(folder)).test.take(torch.tensor([1]))
    assert torch.equal(x[0, 0], x[0, 1])
    assert torch.equal(x[0, 0], x[0, 2])
    assert torch.equal(x[0], decode(jpeg(1001, "L")))


def test_a_changed_image_is_decoded_again(folder, capfd):
    tinyimagenet(str(folder))
    assert "decoding 13 images of Tiny-ImageNet" in capfd.readouterr().err
    tinyimagenet(str(folder))
    assert capfd.readouterr().err == ""
    (folder / "val" / "images" / "val_0.JPEG").write_bytes(jpeg(77))
    x, _ = tinyimagenet(str(folder)).test.take(torch.tensor([0]))
    assert torch.equal(x[0], decode(jpeg(77)))
    (folder / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_1.JPEG").write_bytes(jpeg(78))
    x, y = tinyimagenet(str(folder)).train.take(torch.tensor([4]))
    assert torch.equal(x[0], decode(jpeg(78)))
    assert y.tolist() == [1]


def replace(path: str, old: str, new: str):
    def damage(folder: Path) -> None:
        file = folder / path
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return damage


def cut_jpeg(folder: Path) -> None:
    path = folder / "train" / WNIDS[2] / "images" / f"{WNIDS[2]}_0.JPEG"
    path.write_bytes(path.read_bytes()[:-200])


NOTES = "val/val_annotations.txt"
DAMAGE = {
    "wnid missing": (
        replace("wnids.txt", "n01443537\n", ""),
        "wnids.txt does not name the class train/n01443537",
    ),
    "wnid cut short": (
        replace("wnids.txt", "n04067472\n", "n0406"),
        r"wnids.txt line 3 is 'n0406', not a class",
    ),
    "wnid twice": (
        replace("wnids.txt", "n04067472", "n01443537"),
        "wnids.txt must name classes, each once",
    ),
    "wnid a path": (replace("wnids.txt", "n04067472", "../../x"), r"line 3 is '../../x'"),
    "wnids empty": (lambda folder: (folder / "wnids.txt").write_text(""), "must name classes"),
    "wnids not text": (
        lambda folder: (folder / "wnids.txt").write_bytes(b"\xff\xfe"),
        "cannot read .*wnids.txt",
    ),
    "class folder missing": (
        lambda folder: shutil.rmtree(folder / "train" / WNIDS[1]),
        "train/n01443537 is missing",
    ),
    "class folder unknown": (
        lambda folder: (folder / "train" / "n99999999").mkdir(),
        "does not name .*n99999999",
    ),
    "class without images": (
        lambda folder: [p.unlink() for p in (folder / "train" / WNIDS[0] / "images").iterdir()],
        f"train/{WNIDS[0]}/images holds no image",
    ),
    "images folder missing": (
        lambda folder: shutil.rmtree(folder / "train" / WNIDS[0] / "images"),
        f"cannot list the images in .*{WNIDS[0]}",
    ),
    "no train": (lambda folder: shutil.rmtree(folder / "train"), "train/n01443537 is missing"),
    "annotations missing": (
        lambda folder: (folder / NOTES).unlink(),
        "cannot read .*val_annotations.txt",
    ),
    "unknown class": (replace(NOTES, WNIDS[1], "n00000000"), "line 4 names the class 'n00000000'"),
    "class left out": (replace(NOTES, f"\t{WNIDS[1]}", ""), "line 4 names the class '0'"),
    "line cut short": (
        replace(NOTES, f"{WNIDS[1]}\t0\t0\t63\t63\n", "n0144"),
        "line 4 names the class 'n0144'",
    ),
    "image left out": (
        replace(NOTES, f"val_3.JPEG\t{WNIDS[1]}\t0\t0\t63\t63\n", ""),
        "no line for val_3.JPEG",
    ),
    "image twice": (
        replace(NOTES, "val_3.JPEG", "val_2.JPEG"),
        "line 4 names the image 'val_2.JPEG' twice",
    ),
    "image missing": (
        lambda folder: (folder / "val" / "images" / "val_2.JPEG").unlink(),
        "line 3 names the image 'val_2.JPEG' but it is not in val/images",
    ),
    "image a path": (replace(NOTES, "val_3.JPEG", "../../x.JPEG"), "but it is not in val/images"),
    "jpeg cut short": (cut_jpeg, rf"cannot decode .*{WNIDS[2]}_0\.JPEG: .*truncated"),
    "jpeg not an image": (
        lambda folder: (folder / "val" / "images" / "val_0.JPEG").write_bytes(b"no image"),
        r"cannot decode .*val_0\.JPEG",
    ),
    "jpeg empty": (
        lambda folder: (folder / "val" / "images" / "val_0.JPEG").write_bytes(b""),
        r"cannot decode .*val_0\.JPEG",
    ),
    "jpeg of another size": (
        lambda folder: (folder / "val" / "images" / "val_0.JPEG").write_bytes(jpeg(5, size=32)),
        r"val_0\.JPEG has 32x32 pixels, but those of Tiny-ImageNet have 64x64",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_clear_error(folder, damage, message):
    damage(folder)
    with pytest.raises(DataError, match=message) as caught:
        tinyimagenet(str(folder))
    assert "\n" not in str(caught.value)


def test_missing_data_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError) as caught:
        tinyimagenet(str(tmp_path))
    for part in (
        str(tmp_path / FOLDER),
        "wnids.txt",
        "fedwsq fetch tinyimagenet",
        "tiny-imagenet-200.zip",
        "data.root=",
    ):
        assert part in str(caught.value)


def test_the_real_data_is_what_was_published():
    root = Path(os.environ.get("FEDWSQ_DATA", "")) / FOLDER
    if not (root / "wnids.txt").is_file():
        pytest.skip(f"real Tiny-ImageNet not available: set FEDWSQ_DATA to a folder with {FOLDER}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a part of it will do
        data = tinyimagenet()
    wnids = (root / "wnids.txt").read_text().split()
    assert (data.classes, data.shape) == (200, (3, 64, 64))
    # The test labels, image by image, by the annotations.
    rows = [
        line.split("\t")[:2]
        for line in (root / "val" / "val_annotations.txt").read_text().splitlines()
    ]
    assert [wnids[label] for label in data.test.labels.tolist()] == [wnid for _, wnid in rows]
    # The training labels by the names of the files, and some pixels by Pillow.
    names = []
    for wnid in wnids:
        names += sorted((root / "train" / wnid / "images").iterdir())
    assert [wnids[label] for label in data.train.labels.tolist()] == [
        path.name.split("_")[0] for path in names
    ]
    chosen = torch.arange(0, len(names), 97)
    x, _ = data.train.take(chosen)
    for row, index in enumerate(chosen.tolist()):
        assert torch.equal(x[row], decode(names[index].read_bytes()))
    # Gray images are there, and their channels are equal.
    gray = [
        i
        for i, (name, _) in enumerate(rows)
        if Image.open(root / "val" / "images" / name).mode == "L"
    ]
    assert gray
    x, _ = data.test.take(torch.tensor(gray))
    assert (x == x[:, :1]).all()
    coloured, _ = data.test.take(torch.tensor([i for i in range(100) if i not in gray]))
    assert (coloured != coloured[:, :1]).any()
    mean, std = pixel_stats(data.train)
    assert mean == pytest.approx(data.mean, abs=0.01)
    assert std == pytest.approx(data.std, abs=0.01)


@pytest.mark.parametrize("name", ["wnids.txt", "val/val_annotations.txt", "words.txt"])
def test_lists_beyond_all_are_not_read(folder, name):
    (folder / name).touch()
    os.truncate(folder / name, 2**34)  # with a hole: it takes no room
    with pytest.raises(DataError, match="it has more than"):
        tinyimagenet(str(folder.parent))
