"""Who has what. A simulation has all of it in one place; a deployment does not.

Both ends have the model. Only a client has its examples. Only the server has its test data, if any.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError, DataError, MessageError
from fedwsq.core.seeds import derive
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import fingerprint, shapes
from fedwsq.core.types import Channel, Params
from fedwsq.data import Dataset, Examples, Split
from fedwsq.data.batches import normalize
from fedwsq.models import check_model, frozen, load_weights, train_only, trainable
from fedwsq.plan import Plan
from fedwsq.training import Shard
from fedwsq.training.local import snapshot
from fedwsq.wire import Schema

EVAL_BATCH = (
    100  # examples scored at once; fixed, so that scores do not depend on who computes them
)


class ExampleFormat(NamedTuple):
    """What an example looks like: all that a model needs to know of data that it has not seen."""

    classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False

    @property
    def channels(self) -> int:
        return self.shape[0] if self.shape else 1


def format_of(dataset: Dataset, plan: Plan) -> ExampleFormat:
    """The format of a data set's examples, under a plan that may switch augmentation off."""
    augment = dataset.augment and plan.data.augment
    return ExampleFormat(dataset.classes, dataset.shape, dataset.mean, dataset.std, augment)


@dataclass(frozen=True)
class ModelSpec:
    """The architecture with its frozen weights, the tensors that travel, and where they start."""

    plan: Plan
    format: ExampleFormat

    @cached_property
    def network(self) -> nn.Module:
        """The network that trains here; whoever uses it loads weights first."""
        return self._build()

    @cached_property
    def schema(self) -> Schema:
        """The tensors that travel; if some do not, the digest stands for those too."""
        kept = frozen(self.network)
        digest = bytes.fromhex(fingerprint(kept)) if kept else b""
        return Schema(shapes(trainable(self.network)), digest)

    def initial_params(self) -> Params:
        """The weights of round 0: they depend on the seed alone, or on the file a plan names."""
        weights = snapshot(trainable(self._build()))
        return {name: p.contiguous() for name, p in weights.items()}

    def _build(self) -> nn.Module:
        plan = self.plan
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(plan.seed, "init"))
            network = plan.model.build(classes=self.format.classes, channels=self.format.channels)
            if not isinstance(network, nn.Module):
                raise ConfigError(
                    f"model {plan.model.build.name!r} gave {type(network).__name__}, "
                    "not a torch nn.Module"
                )
            network = plan.model.standardize.apply(network)
        check_model(network)
        if plan.model.init:
            load_weights(network, plan.model.init, self.format.classes)
        train_only(network, plan.model.train)
        plan.algorithm.check(network, plan.training)
        if any(p.dim() == 5 for p in network.parameters()):
            return network  # volumes; torch has no such format for a part of a model
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class Size(NamedTuple):
    """What a client may tell the server of its data."""

    examples: int
    labels: tuple[int, ...] = ()  # how many of each class; empty where targets are not classes


class ClientData(Protocol):
    """The examples of the clients that live here; the only place where they are to be had.

    A client that does not live here is refused with a `MessageError`.
    """

    @property
    def format(self) -> ExampleFormat: ...

    def shard(self, client: int) -> Shard:
        """What the client trains on."""
        ...

    def test_shard(self, client: int) -> Shard:
        """What the client tests on: its own examples that it never trains on; there may be none."""
        ...

    def size(self, client: int) -> Size: ...


@dataclass(frozen=True)
class SplitClients:
    """All clients of a simulation: a data set, and who holds which of its training examples."""

    dataset: Dataset
    format: ExampleFormat
    kept: Tensor  # the training examples that clients hold
    split: Split  # into `kept`
    tests: Split | None = None  # into `kept`: what each client keeps back of its own; None: nothing

    def shard(self, client: int) -> Shard:
        return self._shard(self._of(self.split, client))

    def test_shard(self, client: int) -> Shard:
        none = torch.arange(0)
        return self._shard(none if self.tests is None else self._of(self.tests, client))

    def size(self, client: int) -> Size:
        mine = self.dataset.train.labels[self.kept[self._of(self.split, client)]]
        return size_of(mine, self.format.classes)

    @cached_property
    def label_counts(self) -> Tensor:
        """How many examples of each class each client holds, [clients, classes]."""
        labels = self.dataset.train.labels[self.kept]
        return self.split.counts(labels, self.format.classes)

    @cached_property
    def digest(self) -> str:
        """A hash of the labels and of who holds which example; inputs are too many to be read."""
        parts = {"labels": self.dataset.train.labels[self.kept]}
        parts["split indices"] = self.split.indices
        parts["split offsets"] = self.split.offsets
        if self.tests is not None:
            parts["client_tests indices"] = self.tests.indices
            parts["client_tests offsets"] = self.tests.offsets
        return fingerprint(parts)

    def _of(self, split: Split, client: int) -> Tensor:
        if not 0 <= client < len(split):
            raise MessageError(f"order for client {client}, the split has {len(split)}")
        return split[client]

    def _shard(self, chosen: Tensor) -> Shard:
        x, y = self.dataset.train.take(self.kept.index_select(0, chosen))
        return Shard(x, y, self.format.mean, self.format.std, self.format.augment)


@dataclass(frozen=True)
class OwnData:
    """One client, with what its machine holds: all its training examples, and its own test set."""

    client: int
    dataset: Dataset
    format: ExampleFormat

    def shard(self, client: int) -> Shard:
        return self._whole(client, self.dataset.train)

    def test_shard(self, client: int) -> Shard:
        return self._whole(client, self.dataset.test)

    def size(self, client: int) -> Size:
        return size_of(self.shard(client).y, self.format.classes)

    def _whole(self, client: int, examples: Examples) -> Shard:
        if client != self.client:
            raise MessageError(f"order for client {client}, but client {self.client} lives here")
        x, y = examples.take(torch.arange(len(examples)))
        return Shard(x, y, self.format.mean, self.format.std, self.format.augment)


def size_of(labels: Tensor, classes: int) -> Size:
    """How many examples there are, and how many of each class."""
    if labels.is_floating_point() or labels.dim() != 1:
        return Size(len(labels))
    counts = torch.bincount(labels, minlength=classes)
    return Size(len(labels), tuple(counts.tolist()))


@dataclass(frozen=True)
class Census:
    """What the server knows of its clients' data; None is what nobody has told it."""

    examples: Callable[[int], int | None] = lambda client: None
    certain: bool = False  # whether it knows so itself, as who split the data; or was told
    label_counts: Callable[[], Tensor | None] = lambda: None  # [clients, classes]
    # Who could take part now, in ascending order; None: all of them, always.
    present: Callable[[], Sequence[int] | None] = lambda: None
    channel: Callable[[int], Channel | None] = lambda client: None  # as measured
    class_names: tuple[str, ...] = ()  # for people; empty: unknown


class Batch(NamedTuple):
    """Examples ready for a model."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class TestData:
    """The server's own examples: its test set, or what it held out of the training data."""

    __test__ = False  # not a test, whatever pytest makes of the name

    name: Literal["test", "validation"]
    examples: Examples
    chosen: Tensor  # which of them
    format: ExampleFormat

    def __post_init__(self) -> None:
        if not len(self.chosen):
            raise DataError(
                "the data set has no test examples; hold some of the others out with "
                "data.validation=0.1"
            )

    @property
    def starts(self) -> range:
        """Where each batch starts."""
        return range(0, len(self.chosen), EVAL_BATCH)

    def batch(self, start: int) -> Batch:
        if start not in self.starts:
            raise MessageError(f"no evaluation batch starts at example {start}")
        x, y = self.examples.take(self.chosen[start : start + EVAL_BATCH])
        return Batch(normalize(x, self.format.mean, self.format.std), y)


def batches_of(shard: Shard) -> list[Batch]:
    """A client's test examples in batches, as the server would score them."""
    found = []
    for start in range(0, len(shard.y), EVAL_BATCH):
        x = normalize(shard.x[start : start + EVAL_BATCH], shard.mean, shard.std)
        found.append(Batch(x, shard.y[start : start + EVAL_BATCH]))
    return found
