"""CIFAR-10 (Krizhevsky, 2009), unpacked under the data root."""

from fedwsq.data.cifar import PIXELS, Cifar, read_cifar
from fedwsq.data.dataset import Dataset

RECORD_BYTES = 1 + PIXELS
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
LAYOUTS = {"cifar-10-batches-bin": ".bin", "cifar-10-batches-py": ""}
CIFAR10 = Cifar(
    title="CIFAR-10",
    name="cifar10",
    classes=10,
    layouts=LAYOUTS,
    archives="cifar-10-binary.tar.gz or cifar-10-python.tar.gz",
    train=TRAIN,
    test=TEST,
    record_bytes=RECORD_BYTES,
    label_key="labels",
    names_file={".bin": "batches.meta.txt", "": "batches.meta"},
    names_key="label_names",
    mean=(0.4914, 0.4822, 0.4465),
    # The published code's; the true std over pixels is about .247, .243, .262.
    std=(0.2023, 0.1994, 0.2010),
)


def cifar10(root: str = "") -> Dataset:
    """CIFAR-10: 32x32 photos of 10 classes, from its binary or python archive."""
    return read_cifar(CIFAR10, root)
