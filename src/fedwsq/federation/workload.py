"""What a run rebuilds from its plan, the same in every process: data, who holds which part of it, and the model."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedwsq.core.errors import ConfigError, DataError
from fedwsq.core.seeds import derive
from fedwsq.core.threads import one_thread
from fedwsq.core.tree import fingerprint, shapes
from fedwsq.core.types import Params
from fedwsq.data import Dataset, Examples, Split
from fedwsq.data.batches import normalize
from fedwsq.data.partition import hold_back, hold_out
from fedwsq.models import check_model, frozen, load_weights, train_only, trainable
from fedwsq.plan.settings import Plan
from fedwsq.training import Shard
from fedwsq.training.local import snapshot
from fedwsq.wire import Schema

EVAL_BATCH = (
    100  # examples scored at once; fixed, so that scores do not depend on who computes them
)


@dataclass(frozen=True)
class Workload:
    """The data of a plan, split over clients, and its freshly initialised model."""

    plan: Plan
    dataset: Dataset
    split: Split  # into `kept`
    kept: Tensor  # the training examples that clients hold
    held_out: Tensor  # the training examples kept back for validation
    client_tests: Split | None = (
        None  # into `kept`: what each client keeps back of its own; None: nothing
    )

    @cached_property
    def model(self) -> nn.Module:
        """The network that trains here; whoever uses it loads weights first. What is frozen is in place."""
        return self._build()

    def initial_params(self) -> Params:
        """The trained weights of round 0, which depend on the seed alone, or on the file that the plan names."""
        return {name: p.contiguous() for name, p in snapshot(trainable(self._build())).items()}

    def _build(self) -> nn.Module:
        data, plan = self.dataset, self.plan
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(plan.seed, "init"))
            network = plan.model.build(
                classes=data.classes, channels=data.shape[0] if data.shape else 1
            )
            if not isinstance(network, nn.Module):
                raise ConfigError(
                    f"model {plan.model.build.name!r} gave {type(network).__name__}, not a torch nn.Module"
                )
            network = plan.model.standardize.apply(network)
        check_model(network)
        if plan.model.init:
            load_weights(network, plan.model.init, data.classes)
        train_only(network, plan.model.train)
        plan.algorithm.check(network, plan.training)
        if any(
            p.dim() == 5 for p in network.parameters()
        ):  # volumes; torch has no such format for a part of a model
            return network
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    @cached_property
    def schema(self) -> Schema:
        """The tensors that travel; if some do not, the digest stands for those too."""
        kept = frozen(self.model)
        return Schema(
            shapes(trainable(self.model)), bytes.fromhex(fingerprint(kept)) if kept else b""
        )

    def shard(self, client: int) -> Shard:
        """One client's examples."""
        x, y = self.dataset.train.take(self.kept[self.split[client]])
        data = self.dataset
        return Shard(x, y, data.mean, data.std, data.augment and self.plan.data.augment)

    @cached_property
    def label_counts(self) -> Tensor:
        """How many examples of each class each client holds, [clients, classes]."""
        return self.split.counts(self.dataset.train.labels[self.kept], self.dataset.classes)

    @cached_property
    def data_digest(self) -> str:
        """A hash of the training labels and of who holds which example; inputs are too many to be read for it."""
        parts = {"labels": self.dataset.train.labels[self.kept]}
        for name, split in (("split", self.split), ("client_tests", self.client_tests)):
            parts |= (
                {f"{name} indices": split.indices, f"{name} offsets": split.offsets}
                if split is not None
                else {}
            )
        return fingerprint(parts)

    @property
    def evaluated(self) -> tuple[str, Examples, Tensor]:
        """What accuracy is measured on: its name, the examples and which of them."""
        if len(self.held_out):
            return "validation", self.dataset.train, self.held_out
        return "test", self.dataset.test, torch.arange(len(self.dataset.test))

    def eval_batches(self) -> list[int]:
        """Where each evaluation batch starts."""
        return list(range(0, len(self.evaluated[2]), EVAL_BATCH))

    @cached_property
    def client_batches(self) -> tuple[list[int], Tensor]:
        """Where each batch of a client's own test examples starts, and whose it is; no batch has two clients'.

        They are counted on from the last example that `evaluated` has.
        """
        if self.client_tests is None:
            return [], torch.arange(0)
        batches = (self.client_tests.sizes + EVAL_BATCH - 1) // EVAL_BATCH
        owners = torch.from_numpy(np.repeat(np.arange(len(batches)), batches.numpy()))
        number = (
            torch.arange(len(owners)) - (batches.cumsum(0) - batches)[owners]
        )  # 0, 1, ... for each client
        starts = len(self.evaluated[2]) + self.client_tests.offsets[owners] + number * EVAL_BATCH
        return starts.tolist(), owners

    def eval_batch(self, start: int) -> tuple[Tensor, Tensor]:
        """One evaluation batch, ready for the model."""
        _, examples, chosen = self.evaluated
        if self.client_tests is None or start < len(chosen):
            x, y = examples.take(chosen[start : start + EVAL_BATCH])
        else:
            start, offsets = start - len(chosen), self.client_tests.offsets
            following = int(
                offsets[torch.searchsorted(offsets, start, right=True)]
            )  # where the next client's begin
            end = min(start + EVAL_BATCH, following)
            x, y = self.dataset.train.take(self.kept[self.client_tests.indices[start:end]])
        return normalize(x, self.dataset.mean, self.dataset.std), y


def load_data(plan: Plan) -> tuple[Dataset, Tensor, Tensor]:
    """The data set, the training examples that clients may hold and those held out for validation."""
    dataset: Dataset = plan.data.load()
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"data {plan.data.load.name!r} gave {type(dataset).__name__}, not a fedwsq Dataset"
        )
    count = len(dataset.train)
    kept, held_out = torch.arange(count), torch.arange(0)
    if plan.data.validation:
        kept, held_out = hold_out(count, plan.data.validation, plan.seed)
        if not len(held_out):
            raise ConfigError(
                f"data.validation = {plan.data.validation} of {count} examples holds none out; ask for more"
            )
    return dataset, kept, held_out


def split_data(plan: Plan, dataset: Dataset, kept: Tensor) -> Split:
    """Who holds which of the kept examples, before anyone keeps some back."""
    groups = None if dataset.groups is None else dataset.groups[kept]
    split: Split = plan.data.partition(
        labels=dataset.train.labels[kept], clients=plan.data.clients, seed=plan.seed, groups=groups
    )
    return split


def build_workload(plan: Plan) -> Workload:
    """Load the data and split it; a pure function of the plan and the files it names."""
    dataset, kept, held_out = load_data(plan)
    labels = dataset.train.labels.dtype
    if labels.is_floating_point and plan.training.criterion.name == "cross_entropy":
        raise ConfigError(
            f"training.criterion = cross_entropy needs integer labels, and these are {labels}; store classes as "
            "integers, or use training.criterion=squared_error with metric=minus_squared_error for a regression"
        )
    if (
        not labels.is_floating_point
        and len(dataset.train)
        and int(dataset.train.labels.max()) >= dataset.classes > 0
    ):
        raise DataError(
            f"a training label is {int(dataset.train.labels.max())}, but the data set says that it has "
            f"{dataset.classes} classes, 0 to {dataset.classes - 1}"
        )
    if not len(held_out) and not len(dataset.test):
        raise DataError(
            "the data set has no test examples; hold some of the others out with data.validation=0.1"
        )
    split = split_data(plan, dataset, kept)
    if not plan.data.client_test:
        return Workload(plan, dataset, split, kept, held_out)
    split, client_tests = hold_back(split, plan.data.client_test, plan.seed)
    if not len(client_tests.indices):
        raise ConfigError(
            "data.client_test needs clients with at least 2 examples; use fewer clients"
        )
    return Workload(plan, dataset, split, kept, held_out, client_tests)


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} cannot be used here: {str(error).splitlines()[0]}"
        ) from None
    return chosen
