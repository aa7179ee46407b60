import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.data.hub import hub


def test_without_the_package_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(DataError, match=r"pip install 'fedwsq\[hub\]'"):
        hub("owner/name")
    with pytest.raises(ConfigError, match="size is -1"):
        hub("owner/name", size=-1)


@pytest.fixture
def datasets(monkeypatch, tmp_path):
    package = pytest.importorskip(
        "datasets", reason="needs the extra `hub`: pip install 'fedwsq[hub]'"
    )
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    return package


def pixels(seed: int, size: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def table(datasets, seeds, labels=None, **sizes):
    columns = {"img": [Image.fromarray(pixels(seed, **sizes)) for seed in seeds]}
    columns["kind"] = [seed % 3 for seed in seeds] if labels is None else labels
    features = datasets.Features(
        {"img": datasets.Image(), "kind": datasets.ClassLabel(num_classes=3)}
    )
    return datasets.Dataset.from_dict(columns, features=features)


def save(datasets, folder: Path, **splits) -> str:
    datasets.DatasetDict(**splits).save_to_disk(folder)
    return str(folder)


def check(examples, seeds) -> None:
    x, y = examples.take(torch.arange(len(examples)))
    assert np.array_equal(x.numpy().transpose(0, 2, 3, 1), [pixels(seed) for seed in seeds])
    assert y.tolist() == [seed % 3 for seed in seeds]


def test_a_saved_data_set_is_read_and_decoded_once(datasets, tmp_path, capfd):
    splits = {"train": table(datasets, range(10)), "valid": table(datasets, range(20, 24))}
    repo = save(datasets, tmp_path / "saved", **splits)
    capfd.readouterr()
    for decodes in (2, 0):
        data = hub(repo, test="valid", image="img", label="kind")
        assert capfd.readouterr().err.count("decoding") == decodes
        check(data.train, range(10))
        check(data.test, range(20, 24))
    assert (data.classes, data.shape, data.augment) == (3, (3, 8, 8), True)
    assert data.class_names == ("0", "1", "2")
    assert data.mean == pytest.approx(
        np.mean([pixels(seed) / 255 for seed in range(10)], axis=(0, 1, 2))
    )
    assert hub(repo, test="valid", image="img", label="kind", size=4).shape == (3, 4, 4)


def test_slices_of_one_split_do_not_share_a_cache(datasets, tmp_path):
    table(datasets, range(10)).to_parquet(tmp_path / "repo" / "train.parquet")
    for _ in range(2):
        data = hub(str(tmp_path / "repo"), "train[:70%]", "train[70%:]", "img", "kind")
        check(data.train, range(7))
        check(data.test, range(7, 10))


def test_nothing_is_fetched_unasked(datasets, monkeypatch):
    import socket

    def connect(*arguments):
        raise AssertionError("it went to the network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    with pytest.raises(
        DataError, match=r"cannot load train of nobody/nothing: .*; data\.download=true may fetch"
    ):
        hub("nobody/nothing")


def test_bad_tables_are_one_clear_error(datasets, tmp_path):
    good = table(datasets, range(4))
    repo = save(
        datasets, tmp_path / "a", train=good, test=table(datasets, range(4), labels=[0, 1, -1, 0])
    )
    with pytest.raises(
        DataError, match=r"train has 4 rows of img, kind; set data\.image and data\.label"
    ):
        hub(repo)
    with pytest.raises(
        DataError, match="kind holds labels from -1 to 2, must be 0 to 2; is one split unlabelled"
    ):
        hub(repo, image="img", label="kind")
    with pytest.raises(DataError, match="cannot load nowhere of"):
        hub(repo, test="nowhere", image="img", label="kind")
    with pytest.raises(DataError, match=r"kind is ClassLabel.* not images"):
        hub(repo, test="train", image="kind", label="kind")
    repo = save(datasets, tmp_path / "b", train=good, test=table(datasets, range(4), size=9))
    with pytest.raises(
        DataError, match=r"img 0 has 9x9 pixels, but .*img 0 has 8x8; all must .* data\.size=64"
    ):
        hub(repo, image="img", label="kind")
    broken = {"img": [{"bytes": b"no image", "path": None}, None], "kind": [0, 1]}
    repo = save(
        datasets,
        tmp_path / "c",
        train=good,
        test=datasets.Dataset.from_dict(broken, features=good.features),
    )
    with pytest.raises(DataError, match=r"cannot decode .*img 0"):
        hub(repo, image="img", label="kind")
