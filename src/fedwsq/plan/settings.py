"""The plan: everything that decides a run's result, resolved and frozen."""

import math
import re
from dataclasses import dataclass, field

from fedwsq.algorithms import Algorithm, FedAvg
from fedwsq.core.errors import ConfigError
from fedwsq.core.recipe import Recipe
from fedwsq.data import DATASETS, PARTITIONS
from fedwsq.evaluation import METRICS, Metric
from fedwsq.models import MODELS, NoStandardization, Standardization
from fedwsq.plan.aggregation import WEIGH, Aggregation
from fedwsq.plan.bounds import Bounds
from fedwsq.plan.combine import Combine, Mean, combine_name
from fedwsq.plan.privacy import Privacy
from fedwsq.secure.session import MIN_COHORT
from fedwsq.training import Training
from fedwsq.wire import Downlink, Uplink
from fedwsq.wire.channels import Channels, NoChannels
from fedwsq.wire.link import MAX_VOTERS

# The keys of a flat field stand in the table around it: `data.root`, not `data.load.root`.
FLAT = {"flat": True}


class LoadData(Recipe):
    """An entry of DATASETS."""

    place = "data"


class SplitData(Recipe):
    """An entry of PARTITIONS."""

    context = ("labels", "clients", "seed", "groups")
    place = "data.partition"


class BuildModel(Recipe):
    """An entry of MODELS, called with as much of its context as it takes.

    `channels` is the first dimension of x.
    """

    context = ("classes", "channels")
    place = "model"


@dataclass(frozen=True)
class DataPlan:
    """Which examples there are and who holds them."""

    load: LoadData = field(default=LoadData("digits", DATASETS["digits"]), metadata=FLAT)
    clients: int = 10
    partition: SplitData = SplitData("dirichlet", PARTITIONS["dirichlet"])
    # Share of the training data held out; accuracy is then measured on it, not on test data.
    validation: float = 0.0
    # Share of each client's examples kept back; `eval_clients` then measures on them.
    client_test: float = 0.0
    augment: bool = True  # where the data set has an augmentation

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ConfigError(f"clients is {self.clients}, must be at least 1")
        if not 0 <= self.validation < 1:
            raise ConfigError(
                f"validation is {self.validation}, "
                "must be a share of the training data, 0 to below 1"
            )
        if not 0 <= self.client_test < 1:
            raise ConfigError(
                f"client_test is {self.client_test}, "
                "must be a share of a client's data, 0 to below 1"
            )


@dataclass(frozen=True)
class ModelPlan:
    """The network, how its weights are standardized, where it starts and what of it is trained."""

    build: BuildModel = field(default=BuildModel("cnn", MODELS["cnn"]), metadata=FLAT)
    standardize: Standardization = NoStandardization()
    init: str = ""  # a safetensors file to start from; "": from the seed
    # A regular expression: only parameters in whose names it is found are trained and sent.
    train: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.train)
        except re.error as error:
            raise ConfigError(
                f"train is {self.train!r}, which is not a regular expression: {error}"
            ) from None


@dataclass(frozen=True)
class RecordPlan:
    """What a run keeps beyond its rows; it changes nothing of what the run computes."""

    # Rounds whose messages are kept, with the model before: what `fedwsq analyze` looks at.
    rounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(number < 1 for number in self.rounds):
            raise ConfigError(f"rounds is {list(self.rounds)}, must be rounds, which count from 1")


@dataclass(frozen=True)
class Plan:
    """A whole run: weight standardization x algorithm x codec x bits, on some data."""

    rounds: int = 50
    seed: int = 0
    clients_per_round: int = 5
    aggregation: Aggregation = "examples"
    combine: Combine = Mean()
    metric: Metric = Metric("accuracy", METRICS["accuracy"])
    eval_every: int = 1
    # Also by client: on its `data.client_test`, else estimated from its mix of classes.
    eval_clients: bool = False
    checkpoint_every: int = 1
    stop_at_accuracy: float = 0.0  # 0: run all rounds
    # Seconds from a round's orders to its last reply; who is later is left out. 0: no limit.
    deadline: float = 0.0
    min_replies: int = 1  # with fewer, a round leaves the model as it was
    # Seconds after which a worker process counts as stuck and is replaced. 0: see docs/faults.md.
    patience: float = 0.0
    data: DataPlan = DataPlan()
    model: ModelPlan = ModelPlan()
    training: Training = Training()
    algorithm: Algorithm = FedAvg()
    uplink: Uplink = Uplink()
    downlink: Downlink = Downlink()
    channels: Channels = NoChannels()
    bounds: Bounds = Bounds()
    record: RecordPlan = RecordPlan()
    privacy: Privacy | None = None  # None: clients send what they learned

    def __post_init__(self) -> None:
        self._require_numbers()
        self._require_clients()
        self._require_aggregation()
        self._require_evaluation()
        self._require_decay()
        if self.uplink.counts:
            self._require_one_sum()
        if self.privacy is not None:
            self._require_covered()

    def _require_numbers(self) -> None:
        """Refuse a number that means nothing, whatever the others are."""
        at_least_one = (
            "rounds",
            "clients_per_round",
            "eval_every",
            "checkpoint_every",
            "min_replies",
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
        for name in ("deadline", "patience"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf:
                raise ConfigError(f"{name} is {seconds}, must be seconds (0: no limit of your own)")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}, must be between 0 and 2^63 - 1")
        if not 0 <= self.stop_at_accuracy <= 1:
            raise ConfigError(
                f"stop_at_accuracy is {self.stop_at_accuracy}, must be between 0 and 1 (0: off)"
            )

    def _require_clients(self) -> None:
        """Refuse more clients in a round, or more replies, than there can be."""
        if self.clients_per_round > self.data.clients:
            raise ConfigError(
                f"clients_per_round is {self.clients_per_round} "
                f"but data.clients is {self.data.clients}: "
                "a round cannot sample more clients than there are"
            )
        if self.min_replies > self.clients_per_round:
            raise ConfigError(
                f"min_replies is {self.min_replies} but clients_per_round is "
                f"{self.clients_per_round}: no round could have so many"
            )

    def _require_aggregation(self) -> None:
        """Refuse weights of clients that nobody knows, or that the combination passes over."""
        if self.aggregation not in WEIGH:
            raise ConfigError(f"aggregation is {self.aggregation!r}; it can be {', '.join(WEIGH)}")
        if not isinstance(self.combine, Mean):
            self._require_alike()

    def _require_alike(self) -> None:
        """Refuse what a combination other than the mean would pass over or wipe out."""
        name = combine_name(self.combine)
        if self.aggregation != "uniform":
            raise ConfigError(
                f"combine = {name} counts all clients alike, but aggregation is "
                f"{self.aggregation}; use aggregation=uniform, or combine=mean"
            )
        self.combine.check(self.clients_per_round)
        if self.combine.by_coordinate:
            self.uplink.require_dense(f"combine = {name}")

    def _require_evaluation(self) -> None:
        """Refuse scores by client of a metric that has none."""
        if self.eval_clients and self.metric.name != "accuracy":
            raise ConfigError(
                "eval_clients needs metric = accuracy: it weighs the accuracy of each class"
            )

    def _require_decay(self) -> None:
        """Refuse weight decay by the server where it is not told what it goes by."""
        if self.training.decay_on == "server" and (self.uplink.counts or self.privacy is not None):
            raise ConfigError(
                "training.decay_on = server goes by how many examples clients have, and with "
                "uplink.counts, uplink.secure or privacy that is not told; use "
                "training.decay_on=clients"
            )

    def _require_covered(self) -> None:
        """Refuse settings by which more would leave a client than its noised update."""
        if self.aggregation != "uniform":
            raise ConfigError(
                f"aggregation is {self.aggregation}, but with privacy no client says how many "
                "examples it has; use aggregation=uniform"
            )
        if self.eval_clients or self.data.client_test:
            raise ConfigError(
                "eval_clients and data.client_test tell of clients' own examples, "
                "which privacy does not cover; leave them out"
            )
        if self.uplink.counts:
            raise ConfigError(
                "uplink.counts and uplink.secure tell more than an update, which privacy does not "
                "cover yet; leave one of them out"
            )
        if self.algorithm.uses_metrics:
            raise ConfigError(
                f"{type(self.algorithm).__name__.lower()} needs to know how many steps clients "
                "took, which privacy keeps with them; use another algorithm, such as fedavg"
            )

    def _require_one_sum(self) -> None:
        """Refuse what needs more of each client than its part in one plain sum."""
        what = "uplink.secure" if self.uplink.secure else "uplink.counts"
        if self.aggregation != "uniform":
            raise ConfigError(
                f"{what} adds all clients up alike; aggregation is {self.aggregation!r}, use "
                "aggregation=uniform"
            )
        if not isinstance(self.combine, Mean):
            raise ConfigError(
                f"{what} knows the sum of all updates and none of them; combine is "
                f"{combine_name(self.combine)}, use combine=mean"
            )
        if tuple(self.algorithm.sends) != ("delta",) or self.algorithm.uses_metrics:
            name = type(self.algorithm).__name__.lower()
            raise ConfigError(
                f"{what} sums one vector of each client and nothing else, and {name} needs more; "
                "use fedavg, fedprox, fedacg or another method that sends only its update"
            )
        if self.clients_per_round > MAX_VOTERS:
            raise ConfigError(
                f"{what} sums at most {MAX_VOTERS} clients a round; clients_per_round is "
                f"{self.clients_per_round}"
            )
        if self.uplink.secure and (self.eval_clients or self.data.client_test):
            raise ConfigError(
                "eval_clients and data.client_test tell of each client's own examples, "
                "which uplink.secure keeps with it; leave them out"
            )
        if self.uplink.secure and self.clients_per_round < MIN_COHORT:
            raise ConfigError(
                f"uplink.secure hides a client among at least {MIN_COHORT}; clients_per_round is "
                f"{self.clients_per_round}"
            )
