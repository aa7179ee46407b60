"""Data sets as they are stored, who holds which examples, and batches ready for a model."""

from collections.abc import Callable

from fedwsq.data.cifar10 import cifar10
from fedwsq.data.dataset import Dataset, Examples
from fedwsq.data.digits import digits
from fedwsq.data.partition import Split, dirichlet, iid

DATASETS: dict[str, Callable[..., Dataset]] = {"digits": digits, "cifar10": cifar10}
PARTITIONS: dict[str, Callable[..., Split]] = {"iid": iid, "dirichlet": dirichlet}

__all__ = ["DATASETS", "PARTITIONS", "Dataset", "Examples", "Split"]
