import os
import shutil
import struct
import tracemalloc
from pathlib import Path
from zlib import compress, crc32

import numpy as np
import pytest
import torch
from PIL import Image

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data import images
from fedwsq.data.imagefolder import imagefolder


def pixels(seed: int, width: int = 6, height: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path: Path, array: np.ndarray, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "pets"


def both(data, part: str) -> tuple[np.ndarray, list[int]]:
    examples = getattr(data, part)
    x, y = examples.take(torch.arange(len(examples)))
    return x.numpy().transpose(0, 2, 3, 1), y.tolist()


@pytest.mark.parametrize("test", ["test", "val"])
def test_train_and_test_folders(root, test):
    save(root / "train" / "dog" / "b.png", pixels(1))
    save(root / "train" / "dog" / "a.bmp", pixels(2))
    save(root / "train" / "cat" / "z.PNG", pixels(3))
    save(root / test / "dog" / "x.png", pixels(4))
    (root / "train" / "dog" / "notes.txt").write_text("no image")
    save(root / "train" / "dog" / ".hidden.png", pixels(5))
    (root / "train" / ".cache").mkdir()
    data = imagefolder(str(root))
    x, y = both(data, "train")
    assert np.array_equal(x, [pixels(3), pixels(2), pixels(1)])  # cat before dog, a before b
    assert y == [0, 1, 1]
    x, y = both(data, "test")
    assert np.array_equal(x, [pixels(4)])
    assert y == [1]
    assert (data.classes, data.shape, data.augment) == (2, (3, 4, 6), True)
    assert data.class_names == ("cat", "dog")
    trained = np.stack([pixels(1), pixels(2), pixels(3)]) / 255
    assert data.mean == pytest.approx(trained.mean(axis=(0, 1, 2)))
    assert data.std == pytest.approx(trained.std(axis=(0, 1, 2)))


def test_a_share_is_held_out_of_plain_folders(root):
    for number in range(20):
        save(root / ("cat" if number < 8 else "dog") / f"{number:02}.png", pixels(number))
    data = imagefolder(str(root))
    assert (len(data.train), len(data.test)) == (16, 4)
    assert data.class_names == ("cat", "dog")
    whole = {}
    for part in ("train", "test"):
        x, y = both(data, part)
        whole |= {image.tobytes(): label for image, label in zip(x, y, strict=True)}
    assert whole == {pixels(number).tobytes(): int(number >= 8) for number in range(20)}
    again = imagefolder(str(root))
    assert np.array_equal(both(again, "test")[0], both(data, "test")[0])
    assert len(imagefolder(str(root), test=0.5).test) == 10
    for share in (0.0, 1.0, 0.01, -0.2):
        with pytest.raises(
            ConfigError, match=r"test = .* of 20 examples must leave some on both sides"
        ):
            imagefolder(str(root), test=share)


def test_images_of_several_sizes_need_one(root):
    save(root / "train" / "cat" / "a.png", pixels(1))
    save(root / "train" / "cat" / "b.png", pixels(2, width=10, height=5))
    save(root / "test" / "cat" / "c.png", pixels(3))
    with pytest.raises(DataError) as caught:
        imagefolder(str(root))
    for part in ("b.png has 10x5 pixels", "a.png has 6x4", "data.size=64"):
        assert part in str(caught.value)
    assert imagefolder(str(root), size=8).shape == (3, 8, 8)
    with pytest.raises(ConfigError, match="size is -1"):
        imagefolder(str(root), size=-1)


def test_size_scales_and_crops_about_the_centre(root):
    # 8 wide, 4 high: the middle 4 columns remain, halved to 2x2; constant quarters stay.
    image = np.zeros((4, 8, 3), np.uint8)
    for columns, value in ((slice(2, 4), 60), (slice(4, 6), 120), (slice(6, 8), 255)):
        image[:, columns] = value
    for part in ("train", "test"):
        save(root / part / "one" / "a.png", image)
    x, _ = both(imagefolder(str(root), size=2), "train")
    assert x.shape == (1, 2, 2, 3)
    assert (x[0, :, 0] < 90).all() and (x[0, :, 1] > 90).all()  # noqa: PT018
    assert x.max() < 130  # nothing of the right quarter
    same = imagefolder(str(root), size=4)
    assert np.array_equal(both(same, "train")[0][0], image[:, 2:6])


def test_gray_palette_and_transparent_images_become_rgb(root):
    gray = pixels(1)[:, :, 0]
    save(root / "train" / "a" / "gray.png", gray)
    save(root / "train" / "a" / "see-through.png", np.dstack([pixels(2), gray]))
    (root / "train" / "a").mkdir(exist_ok=True)
    Image.fromarray(pixels(3)).quantize(8).save(root / "train" / "a" / "few.gif")
    save(root / "test" / "a" / "x.png", pixels(4))
    x, _ = both(imagefolder(str(root)), "train")
    few = np.asarray(Image.open(root / "train" / "a" / "few.gif").convert("RGB"))
    assert np.array_equal(x, [few, np.dstack([gray] * 3), pixels(2)])


def test_a_photo_is_turned_as_its_camera_says(root):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise is needed
    save(root / "train" / "a" / "a.png", pixels(1), exif=exif)
    save(root / "test" / "a" / "b.png", pixels(2, width=4, height=6))
    x, _ = both(imagefolder(str(root)), "train")
    assert np.array_equal(x[0], np.rot90(pixels(1), k=-1))


def broken(path: Path) -> None:
    save(path, pixels(9))
    path.write_bytes(path.read_bytes()[:60])


BAD = {
    "no folder": (lambda root: None, "pets is no folder"),
    "no classes": (lambda root: root.mkdir(), "pets holds no folders"),
    "an empty class": (
        lambda root: (root / "cat").mkdir(parents=True),
        r"cat holds no image \(\.jpg, ",
    ),
    "train alone": (
        lambda root: save(root / "train" / "cat" / "a.png", pixels(1)),
        "neither test nor val",
    ),
    "a new class in test": (
        lambda root: [
            save(root / "train" / "cat" / "a.png", pixels(1)),
            save(root / "test" / "dog" / "b.png", pixels(2)),
        ],
        "test/dog is a class that .*train does not have",
    ),
    "a damaged image": (
        lambda root: [save(root / "cat" / "a.png", pixels(1)), broken(root / "cat" / "b.png")],
        r"cannot decode .*b\.png: .*; replace it",
    ),
    "a first image that is damaged": (
        lambda root: [broken(root / "cat" / "a.png"), broken(root / "cat" / "b.png")],
        r"cannot decode .*[ab]\.png",
    ),
    "text": (
        lambda root: [
            save(root / "cat" / "a.png", pixels(1)),
            (root / "cat" / "b.jpg").write_text("%!PS-Adobe"),
        ],
        r"cannot decode .*b\.jpg",
    ),
    "deep gray": (
        lambda root: [
            save(root / "cat" / name, np.full((4, 6), 40_000, np.uint16))
            for name in ("a.png", "b.png")
        ],
        r"more than 8 bits a channel .*data\.name=npz",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_folders_are_one_clear_error(root, make, message):
    make(root)
    with pytest.raises(DataError, match=message):
        imagefolder(str(root), test=0.5)


def test_the_cache_follows_the_files(root, capfd):
    for part in ("train", "test"):
        save(root / part / "a" / "a.png", pixels(1))
    imagefolder(str(root))
    assert "decoding 2 images" in capfd.readouterr().err
    imagefolder(str(root))
    assert capfd.readouterr().err == ""
    path = root / "train" / "a" / "a.png"
    status = path.stat()
    save(path, pixels(7))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    x, _ = both(imagefolder(str(root)), "train")
    assert np.array_equal(x[0], pixels(7))
    path.rename(path.with_name("b.png"))
    imagefolder(str(root))
    assert capfd.readouterr().err.count("decoding 2 images") == 2


def test_an_image_that_would_take_a_gigabyte_is_not_decoded(root):
    """A PNG of a few bytes, whose header says 32768 x 32768."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc32(kind + body))

    header = struct.pack(">IIBBBBB", 2**15, 2**15, 8, 2, 0, 0, 0)
    folder = root / "dog"
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.png").write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"IDAT", compress(b""))
            + chunk(b"IEND", b"")
        )
    tracemalloc.start()
    with pytest.raises(DataError, match=r"cannot decode .*png"):
        imagefolder(str(root), size=8)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_an_image_of_many_pixels_is_refused_by_its_size(root, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 1_000)
    for number in range(5):
        save(root / "dog" / f"{number}.png", pixels(number, 40, 26))
    with pytest.raises(DataError, match="40x26 pixels, most are 1,000"):
        imagefolder(str(root), size=8)


def test_large_images_are_not_held_side_by_side(root, monkeypatch):
    """Some hundred small files of 8000x8000 pixels would be 50 GB otherwise."""
    assert images.Form(8000, 8000).chunk == 1
    assert images.Form(64, 64).chunk == images.CHUNK
    monkeypatch.setattr(images, "CHUNK_BYTES", 2 * 3 * 6 * 4)
    for number in range(5):
        save(root / "cat" / f"{number}.png", pixels(number))
    sizes = []
    stack = np.stack
    monkeypatch.setattr(np, "stack", lambda each: sizes.append(len(each)) or stack(each))
    found = imagefolder(str(root))
    assert (len(found.train), len(found.test)) == (4, 1)
    assert sizes == [2, 2, 1]


def test_more_than_the_disk_holds_is_refused_before_anything_is_decoded(root, monkeypatch):
    for number in range(5):
        save(root / "cat" / f"{number}.png", pixels(number))
    usage = shutil.disk_usage(root)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"takes 360 bytes \(5 images of 6x4\), .* has 100 free"):
        imagefolder(str(root))
    assert not list(root.parent.glob("*.safetensors*"))


def test_a_size_beyond_all_is_refused(root):
    with pytest.raises(ConfigError, match="size is 100000, must be 0"):
        imagefolder(str(root), size=100_000)
