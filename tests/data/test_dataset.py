import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwsq.core.errors import DataError
from fedwsq.data import DATASETS, Dataset, Examples
from fedwsq.data.dataset import data_root, pixel_stats
from fedwsq.data.digits import digits
from fedwsq.plan import DataPlan


def numbered(sizes: list[int]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Parts of the given sizes whose example i holds 3i, 3i + 1, 3i + 2, labelled 10 i."""
    whole = torch.arange(3 * sum(sizes)).view(-1, 3)
    return list(whole.split(sizes)), 10 * torch.arange(sum(sizes))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_take_is_indexing_of_the_concatenation(sizes, data):
    parts, labels = numbered(sizes)
    examples = Examples(parts, labels)
    last = max(sum(sizes) - 1, 0)
    indices = torch.tensor(
        data.draw(st.lists(st.integers(0, last), max_size=9 if sum(sizes) else 0)),
        dtype=torch.int64,
    )
    x, y = examples.take(indices)
    assert torch.equal(x, torch.cat(parts)[indices])
    assert torch.equal(y, labels[indices])
    assert (len(examples), examples.shape) == (sum(sizes), (3,))


@pytest.mark.parametrize("sizes", [[5], [2, 3]])
@pytest.mark.parametrize("index", [-1, 5])
def test_take_refuses_an_index_out_of_range(sizes, index):
    with pytest.raises(IndexError):
        Examples(*numbered(sizes)).take(torch.tensor([0, index]))


def test_parts_and_labels_must_fit():
    parts, labels = numbered([2, 3])
    with pytest.raises(DataError, match="5 examples but 4 labels"):
        Examples(parts, labels[:4])
    with pytest.raises(DataError, match="agree in dtype and shape"):
        Examples([parts[0], parts[1].float()], labels)
    with pytest.raises(DataError, match="at least one"):
        Examples([], labels)


def test_digits_are_scikit_learns_with_every_fifth_as_test():
    from sklearn.datasets import load_digits

    data = digits()
    stored = load_digits()
    assert (len(data.train), len(data.test)) == (
        1438,
        359,
    )  # 1797 = 359 x 5 + 2; test is 4, 9, ..., 1794
    assert (data.shape, data.test.shape, data.classes, data.augment) == (
        (1, 8, 8),
        (1, 8, 8),
        10,
        False,
    )
    x, y = data.test.take(torch.tensor([0, 358]))
    assert torch.equal(x[:, 0], torch.tensor(stored.images[[4, 1794]] / 16, dtype=torch.float32))
    assert y.tolist() == stored.target[[4, 1794]].tolist()
    x, y = data.train.take(torch.arange(1438))
    assert (x.min(), x.max(), x.dtype, y.dtype) == (0, 1, torch.float32, torch.int64)
    # The published class counts of the whole set: both splits together hold each sample once.
    both = torch.cat([data.train.labels, data.test.labels])
    assert both.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_data_root_prefers_the_config_then_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("FEDWSQ_DATA", "/mnt/data")
    assert str(data_root("~/sets")) == "/home/ada/sets"
    assert str(data_root("")) == "/mnt/data"
    monkeypatch.delenv("FEDWSQ_DATA")
    assert str(data_root("")) == "data"


def test_groups_belong_to_the_training_examples():
    train = Examples(*numbered([4]))
    test = Examples(*numbered([2]))
    assert Dataset(train, test, classes=1).groups is None
    assert Dataset(train, test, classes=1, groups=torch.tensor([0, 1, 1, 0])).groups.tolist() == [
        0,
        1,
        1,
        0,
    ]
    with pytest.raises(DataError, match="2 groups but 4 training examples"):
        Dataset(train, test, classes=1, groups=torch.tensor([0, 1]))


def test_all_classes_have_names_or_none():
    train = Examples(*numbered([4]))
    assert digits().class_names == tuple("0123456789")
    assert Dataset(train, train, classes=2).class_names == ()
    with pytest.raises(DataError, match="1 class names but 2 classes; name all of them or none"):
        Dataset(train, train, classes=2, class_names=("cat",))


@pytest.mark.parametrize(
    "shape", [(7, 3, 5, 4), (3, 1, 1500, 1500)]
)  # the second: a few images at once
def test_pixel_stats_are_those_of_the_pixels(shape):
    x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    mean, std = pixel_stats(Examples([x[:2], x[2:]], torch.zeros(len(x))))
    assert mean == pytest.approx((x.double() / 255).mean(dim=(0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(
        (x.double() / 255).std(dim=(0, 2, 3), correction=0).tolist(), rel=1e-12
    )


def test_pixel_stats_of_a_constant_channel_can_be_divided_by():
    x = torch.full((4, 2, 3, 3), 51, dtype=torch.uint8)
    assert pixel_stats(Examples([x], torch.zeros(4))) == ((0.2, 0.2), (1.0, 1.0))


@pytest.mark.parametrize("name", DATASETS)
def test_loaders_explain_themselves_and_leave_the_plans_own_keys_alone(name):
    loader = DATASETS[name]
    assert loader.__doc__
    assert loader.__doc__.splitlines()[0].endswith(".")
    settings = inspect.signature(loader).parameters
    taken = {"name", *(field.name for field in fields(DataPlan))}
    assert not taken & settings.keys()  # they would never reach the loader
    assert all(parameter.annotation in (str, int, float, bool) for parameter in settings.values())
    assert get_type_hints(loader)["return"] is Dataset
