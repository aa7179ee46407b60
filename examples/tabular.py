"""Eight clinics learn to tell benign from malignant tumours and share no patient: a table of numbers, 4-bit updates.

    python examples/tabular.py [OUT] [ROUNDS]

The data is the Wisconsin breast cancer set that scikit-learn carries. No clinic sees a fair sample: each holds the
tumours of one range of sizes, so that some have hardly a benign one and some hardly a malignant one.
"""

import sys
import tempfile

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import fedwsq
from fedwsq import Dataset, Examples

CLINICS = 8


def cancer() -> Dataset:
    """455 training and 114 test patients, each with 30 measurements."""
    bunch = load_breast_cancer()
    x, y = torch.from_numpy(bunch.data).float(), torch.from_numpy(bunch.target)
    held_out = torch.arange(len(y)) % 5 == 4
    train, test = (Examples([x[chosen]], y[chosen]) for chosen in (~held_out, held_out))
    known = x[~held_out]
    by_size = known[:, 0].argsort().argsort()  # the rank of each patient's mean radius
    mean, std = tuple(known.mean(0).tolist()), tuple(known.std(0).tolist())
    return Dataset(
        train, test, classes=2, mean=mean, std=std, groups=by_size * CLINICS // len(by_size)
    )


def mlp(channels: int, classes: int, width: int = 32) -> nn.Module:
    """Two hidden layers with standardized weights, each with a norm behind it; `channels` are the columns of x."""
    hidden = [
        nn.Sequential(nn.Linear(inputs, width, bias=False), nn.LayerNorm(width), nn.ReLU())
        for inputs in (channels, width)
    ]
    fedwsq.standardize(
        nn.Sequential(*hidden), select=lambda name, layer: isinstance(layer, nn.Linear)
    )
    return nn.Sequential(*hidden, nn.Linear(width, classes))


SETTINGS = {
    "data": {"name": "tabular:cancer", "clients": CLINICS, "partition": "group"},
    "model": {
        "name": "tabular:mlp",
        "standardize": "none",
    },  # "ws" is for convolutions; `mlp` sees to it itself
    "training.batch_size": 16,
    "uplink.select": "weights",
}

if __name__ == "__main__":
    out, rounds = (
        sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(),
        int(sys.argv[2]) if sys.argv[2:] else 20,
    )
    summary = fedwsq.run("quickstart", {**SETTINGS, "rounds": rounds}, out=out, workers=1)
    print(
        f"test accuracy {summary.accuracy:.3f}, {summary.uplink_factor:.1f} times fewer bytes up; see {out}"
    )
