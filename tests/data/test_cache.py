import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedwsq.core.errors import DataError
from fedwsq.data.cache import cached
from harness import PATIENCE_SECONDS

SHAPE = (5, 3, 2, 4)
IMAGES = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)


class Source:
    """Chunks that count how often they are asked for."""

    def __init__(self, images: np.ndarray = IMAGES) -> None:
        self.images = images
        self.asked = 0

    def __iter__(self):
        self.asked += 1
        yield self.images[:2]
        yield np.asfortranarray(self.images[2:])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    (tmp_path / "data" / "pets").mkdir(parents=True)
    return tmp_path / "data" / "pets"


def place(folder: Path) -> Path:
    return folder.parent / "pets.decoded-4x2.safetensors"


def get(folder: Path, source: Source, fingerprint: str = "one") -> torch.Tensor:
    return cached("pets", folder, fingerprint, SHAPE, source)


def test_images_are_decoded_once_and_mapped_from_then_on(folder, capfd):
    source = Source()
    assert np.array_equal(get(folder, source).numpy(), IMAGES)
    said = capfd.readouterr()
    assert said.out == ""
    assert f"decoding 5 images of pets once, into {place(folder)}\n" in said.err
    images = get(folder, source)
    assert np.array_equal(images.numpy(), IMAGES)
    assert source.asked == 1
    assert capfd.readouterr() == ("", "")
    images.zero_()  # a private mapping: the file stays as it is
    assert np.array_equal(load_file(place(folder))["images"].numpy(), IMAGES)
    assert set(folder.parent.iterdir()) == {folder, place(folder)}


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def resave(path: Path, images: torch.Tensor) -> None:
    save_file({"images": images}, path, {"fingerprint": "one", "sha256": "0" * 64})


DAMAGE = {
    "a pixel": lambda path: flip(path, -1),
    "the first byte": lambda path: flip(path, 0),
    "the header": lambda path: flip(path, 20),
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a cache"),
    "another shape": lambda path: resave(path, torch.zeros(5, 3, 4, 2, dtype=torch.uint8)),
    "another digest": lambda path: resave(path, torch.from_numpy(IMAGES)),
    "no metadata": lambda path: save_file({"images": torch.from_numpy(IMAGES)}, path),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_cache_is_made_again(folder, damage):
    source = Source()
    get(folder, source)
    damage(place(folder))
    assert np.array_equal(get(folder, source).numpy(), IMAGES)
    assert source.asked == 2
    get(folder, source)
    assert source.asked == 2


def test_a_stale_cache_is_made_again(folder):
    get(folder, Source())
    newer = Source(255 - IMAGES)
    assert np.array_equal(get(folder, newer, "two").numpy(), 255 - IMAGES)
    assert newer.asked == 1


def test_what_was_mapped_stays_while_the_file_is_replaced(folder):
    before = get(folder, Source())
    get(folder, Source(255 - IMAGES), "two")
    assert np.array_equal(before.numpy(), IMAGES)


def test_a_failure_leaves_nothing_behind(folder):
    def fails():
        yield IMAGES[:2]
        raise DataError("the third is damaged")

    with pytest.raises(DataError, match="the third is damaged"):
        cached("pets", folder, "one", SHAPE, fails())
    assert list(folder.parent.iterdir()) == [folder]


def test_too_few_images_are_an_error_and_no_cache(folder):
    with pytest.raises(DataError, match="cannot be read back"):
        cached("pets", folder, "one", SHAPE, [IMAGES[:2]])
    assert list(folder.parent.iterdir()) == [folder]


def unwritable_by_name(folder: Path) -> Path:
    """The name of the cache would be longer than a name can be, whoever asks."""
    return folder.rename(folder.with_name("p" * 250))


def unwritable_by_mode(folder: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    folder.parent.chmod(0o555)
    return folder


@pytest.mark.parametrize("make", [unwritable_by_name, unwritable_by_mode])
def test_a_read_only_place_falls_back_to_the_users_cache_and_says_so(folder, make, tmp_path, capfd):
    folder = make(folder)
    source = Source()
    assert np.array_equal(get(folder, source).numpy(), IMAGES)
    (made,) = (tmp_path / "user" / "fedwsq").iterdir()
    assert f"into {made} ({folder.parent} cannot be written)" in capfd.readouterr().err
    get(folder, source)
    assert source.asked == 1
    other = folder.parent / "elsewhere" / folder.name  # of the same name, but not the same folder
    cached("pets", other, "one", SHAPE, source)
    assert source.asked == 2
    folder.parent.chmod(0o755)


def test_nowhere_to_write_is_one_clear_error(folder, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"neither .* nor .* can be written .*XDG_CACHE_HOME"):
        get(unwritable_by_name(folder), Source())


RACER = """
import sys
from pathlib import Path
import numpy as np
from fedwsq.data.cache import cached
for turn in range(12):
    # Every turn finds the file of another turn, or of another process, and replaces it.
    value = turn % 2
    images = np.full((64, 3, 32, 32), value, np.uint8)
    rows = (row[None] for row in images)
    found = cached("pets", Path(sys.argv[1]), f"turn {value}", images.shape, rows)
    assert np.array_equal(found.numpy(), images)
"""


def test_processes_at_once_do_not_corrupt_it(folder):
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(folder)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [racer.communicate(timeout=PATIENCE_SECONDS)[1].decode() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0], said
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        "pets",
        "pets.decoded-32x32.safetensors",
    ]
