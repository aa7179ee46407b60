"""The 8x8 handwritten digits that scikit-learn carries: real data, offline, always there."""

import torch

from fedwsq.data.dataset import Dataset, Examples


def digits() -> Dataset:
    """1797 digits with pixels in [0, 1]; every fifth sample is a test sample."""
    from sklearn.datasets import load_digits  # slow to import, and only this data set needs it

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().div_(16).unsqueeze(1)  # [n, 1, 8, 8], from 0..16
    y = torch.from_numpy(bunch.target).long()
    test = torch.arange(len(y)) % 5 == 4
    return Dataset(
        train=Examples([x[~test]], y[~test]),
        test=Examples([x[test]], y[test]),
        classes=10,
        class_names=tuple(map(str, bunch.target_names)),
    )
