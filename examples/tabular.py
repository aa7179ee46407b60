"""Eight clinics learn to tell benign from malignant tumours and share no patient.

    python examples/tabular.py [OUT] [ROUNDS]

A table of numbers, 4-bit updates. The data is the Wisconsin breast cancer set that scikit-learn
carries. No clinic sees a fair sample: each holds the tumours of one range of sizes, so that some
have hardly a benign one and some hardly a malignant one.
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
    x = torch.from_numpy(bunch.data).float()
    y = torch.from_numpy(bunch.target)
    held_out = torch.arange(len(y)) % 5 == 4
    known = x[~held_out]
    by_size = known[:, 0].argsort().argsort()  # the rank of each patient's mean radius
    return Dataset(
        train=Examples([known], y[~held_out]),
        test=Examples([x[held_out]], y[held_out]),
        classes=2,
        mean=tuple(known.mean(0).tolist()),
        std=tuple(known.std(0).tolist()),
        groups=by_size * CLINICS // len(by_size),
    )


def mlp(channels: int, classes: int, width: int = 32) -> nn.Module:
    """Two hidden layers with standardized weights and norms; `channels` are the columns of x."""
    hidden = nn.Sequential()
    for inputs in (channels, width):
        linear = nn.Linear(inputs, width, bias=False)
        hidden.append(nn.Sequential(linear, nn.LayerNorm(width), nn.ReLU()))
    fedwsq.standardize(hidden, select=lambda name, layer: isinstance(layer, nn.Linear))
    return nn.Sequential(*hidden, nn.Linear(width, classes))


SETTINGS = {
    "data": {"name": "tabular:cancer", "clients": CLINICS, "partition": "group"},
    # "ws" is for convolutions; `mlp` sees to it itself.
    "model": {"name": "tabular:mlp", "standardize": "none"},
    "training.batch_size": 16,
    "uplink.select": "weights",
}

if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    out = given.get(1) or tempfile.mkdtemp()
    settings = {**SETTINGS, "rounds": int(given.get(2, 20))}
    summary = fedwsq.run("quickstart", settings, out=out, workers=1)
    fewer = f"{summary.uplink_factor:.1f} times fewer bytes up"
    print(f"test accuracy {summary.accuracy:.3f}, {fewer}; see {out}")
