"""Data sets as they are stored, who holds which examples, and batches ready for a model."""

from collections.abc import Callable

from fedwsq.data.cifar10 import cifar10
from fedwsq.data.cifar100 import cifar100
from fedwsq.data.dataset import Dataset, Examples
from fedwsq.data.digits import digits
from fedwsq.data.fashionmnist import fashionmnist
from fedwsq.data.hub import hub
from fedwsq.data.imagefolder import imagefolder
from fedwsq.data.npz import npz
from fedwsq.data.partition import dirichlet, dirichlet_label, group, iid, own, shards
from fedwsq.data.split import Split
from fedwsq.data.split_files import from_file
from fedwsq.data.synthetic import synthetic
from fedwsq.data.tinyimagenet import tinyimagenet

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tinyimagenet": tinyimagenet,
    "fashionmnist": fashionmnist,
    "synthetic": synthetic,
    "imagefolder": imagefolder,
    "npz": npz,
    "hub": hub,
}
PARTITIONS: dict[str, Callable[..., Split]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_label": dirichlet_label,
    "shards": shards,
    "group": group,
    "file": from_file,
    "own": own,
}

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "Examples", "Split"]
