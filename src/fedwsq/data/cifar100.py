"""CIFAR-100 (Krizhevsky, 2009), unpacked under the data root; the class is the fine label."""

from fedwsq.data.cifar import PIXELS, Cifar, read_cifar
from fedwsq.data.dataset import Dataset

CIFAR100 = Cifar(
    title="CIFAR-100",
    name="cifar100",
    classes=100,
    layouts={"cifar-100-binary": ".bin", "cifar-100-python": ""},
    archives="cifar-100-binary.tar.gz or cifar-100-python.tar.gz",
    train=("train",),
    test=("test",),
    record_bytes=2 + PIXELS,  # the coarse label, the fine label, the pixels
    label_key="fine_labels",
    names_file={".bin": "fine_label_names.txt", "": "meta"},
    names_key="fine_label_names",
    mean=(0.5071, 0.4867, 0.4408),  # mean and std as in the published code
    std=(0.2675, 0.2565, 0.2761),
)


def cifar100(root: str = "") -> Dataset:
    """CIFAR-100: 32x32 photos of 100 classes, from its binary or python archive."""
    return read_cifar(CIFAR100, root)
