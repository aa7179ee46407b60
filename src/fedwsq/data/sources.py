"""Where data sets are published, how large they are, on which terms."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One published file; the name ends in .tar.gz, .zip or .gz."""

    name: str
    bytes: int
    # The published sum. It finds damage; that nobody forged a file is what https vouches for,
    # where a publisher offers it.
    md5: str


@dataclass(frozen=True)
class Source:
    """A data set at its publisher, and the folder under the data root that it becomes."""

    title: str
    url: str  # of the folder that holds the files, ending in /; or of the one file
    files: tuple[File, ...]
    folder: str
    unpacked_bytes: int  # what the folder takes on disk at most; more is refused
    terms: str
    cite: str


SOURCES: dict[str, Source] = {
    "cifar10": Source(
        title="CIFAR-10, binary version",
        url="https://www.cs.toronto.edu/~kriz/",
        files=(File("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),),
        folder="cifar-10-batches-bin",
        unpacked_bytes=200_000_000,
        terms="no licence stated; the authors ask to be cited",
        cite="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
    "cifar100": Source(
        title="CIFAR-100, binary version",
        url="https://www.cs.toronto.edu/~kriz/",
        files=(File("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),),
        folder="cifar-100-binary",
        unpacked_bytes=200_000_000,
        terms="no licence stated; the authors ask to be cited",
        cite="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
    "fashionmnist": Source(
        title="Fashion-MNIST",
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files=(
            File("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            File("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            File("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            File("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        folder="fashion-mnist",
        unpacked_bytes=60_000_000,
        terms="MIT licence, Zalando SE",
        cite="Xiao, Rasul, Vollgraf, Fashion-MNIST, 2017, arXiv:1708.07747",
    ),
    "tinyimagenet": Source(
        title="Tiny-ImageNet, 200 classes",
        url="http://cs231n.stanford.edu/",
        files=(File("tiny-imagenet-200.zip", 248_100_043, "90528d7ca1a48142e341f4ef8d21d0de"),),
        folder="tiny-imagenet-200",
        # About 240 MB in 120,000 files, each rounded up to whole disk blocks.
        unpacked_bytes=600_000_000,
        terms="images from ImageNet: non-commercial research and education (image-net.org)",
        cite="Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015",
    ),
}
