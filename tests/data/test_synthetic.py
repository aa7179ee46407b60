import time

import numpy as np
import pytest
import torch

from fedwsq.core.errors import ConfigError
from fedwsq.data.synthetic import ROWS, synthetic


def test_shapes_and_balance():
    data = synthetic(samples=70, test_samples=14, classes=7, size=5, channels=2)
    assert (len(data.train), len(data.test), data.classes, data.shape) == (70, 14, 7, (2, 5, 5))
    assert data.train.labels.bincount().tolist() == [10] * 7
    x, y = data.train.take(torch.arange(70))
    assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)


def test_a_seed_is_a_data_set():
    x, other = (synthetic(samples=50, seed=seed).train._parts[0] for seed in (0, 1))
    assert torch.equal(x, synthetic(samples=50).train._parts[0])
    assert not torch.equal(x, other)
    long = synthetic(samples=ROWS + 50)
    assert torch.equal(long.train._parts[0][:50], x)
    assert not torch.equal(long.train._parts[0][ROWS:], long.train._parts[0][:50])
    assert not torch.equal(long.test._parts[0][:50], x)


def test_without_noise_an_image_is_its_class_and_with_it_alone_is_nothing():
    data = synthetic(samples=40, classes=4, noise=0.0)
    x, _ = data.train.take(torch.arange(40))
    assert torch.equal(x, x[:4].repeat(10, 1, 1, 1))
    assert len(torch.unique(x[:4], dim=0)) == 4
    pure = synthetic(samples=20_000, classes=2, noise=1.0).train._parts[0].double()
    assert pure.mean() == pytest.approx(127.5, abs=0.5)
    assert (pure[::2].mean(dim=0) - pure[1::2].mean(dim=0)).abs().max() < 5 * 74 * (
        2 / 10_000
    ) ** 0.5


def test_it_can_be_learned_but_not_by_heart():
    data = synthetic()
    x, y = data.train.take(torch.arange(len(data.train)))
    means = torch.stack([x[y == c].float().mean(dim=0) for c in range(10)]).flatten(1)
    x, y = data.test.take(torch.arange(len(data.test)))
    nearest = torch.cdist(x.float().flatten(1), means).argmin(dim=1)
    assert 0.7 < (nearest == y).double().mean() < 1


def test_a_million_samples_are_cheap():
    start = time.process_time()
    data = synthetic(samples=1_000_000)
    assert time.process_time() - start < 4  # 0.4 s on an idle core
    assert data.train._parts[0].untyped_storage().nbytes() == 64_000_000
    assert np.array_equal(data.train.labels[-3:], [7, 8, 9])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"test_samples": 0}, "test_samples is 0"),
        ({"size": 0}, "size is 0"),
        ({"channels": -1}, "channels is -1"),
        ({"classes": 0}, "classes is 0"),
        ({"samples": 5, "classes": 6}, "classes is 6, must be 1 to the number of samples, 5"),
        ({"noise": 1.5}, "noise is 1.5"),
        ({"noise": float("nan")}, "noise is nan"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        synthetic(**settings)


def test_more_than_any_machine_holds_is_refused():
    with pytest.raises(ConfigError, match="no machine holds so many"):
        synthetic(samples=2**63 - 1)
