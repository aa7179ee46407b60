"""What a federated algorithm is: pure functions over plain state."""

from typing import Protocol

from torch import nn

from fedwsq.core.errors import ConfigError
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.models import MODELS
from fedwsq.training import LocalTask, Sgd, Training


class Algorithm(Protocol):
    """A frozen dataclass whose fields are its hyper-parameters; state goes in and comes out.

    A round, at the server and at each of its clients:

        received = algorithm.broadcast(server)
        update, client = algorithm.client_update(received, client, task)
        client = algorithm.settle(client, what the server will decode of update.vectors)
        server = algorithm.server_update(server, mean of the decoded updates, cohort)

    `FedAvg` is the shortest one; `Scaffold` has memory at both ends.
    """

    @property
    def sends(self) -> tuple[str, ...]:
        """Names of the vectors that go up."""
        ...

    @property
    def uses_metrics(self) -> bool:
        """Whether the server's update needs what clients report beside their vectors."""
        ...

    def check(self, model: nn.Module, training: Training) -> None:
        """Raise `ConfigError` when model or settings lack what the method needs.

        Asked before the first round.
        """
        ...

    def init_server(self, params: Params) -> State:
        """The server's memory; it always holds "params", the model that is evaluated and saved."""
        ...

    def init_client(self, params: Params) -> State:
        """A client's memory before its first round; {} when clients keep nothing."""
        ...

    def broadcast(self, server: State) -> Vectors:
        """What clients receive: "params" is where they start."""
        ...

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train on the client's data and return the update with the client's memory.

        Where both ends hold the same quantity, the memory is left as it was: `settle` moves it.
        """
        ...

    def settle(self, client: State, sent: Vectors) -> State:
        """The client's memory once its update is coded; `sent` is what the server will decode.

        A code loses something. What both ends keep a sum of must grow by the same at both.
        """
        ...

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """The server's memory after the mean update of a round."""
        ...


class Defaults:
    """What most methods share: one vector up, the model down, no memory on clients, any model."""

    @property
    def sends(self) -> tuple[str, ...]:
        return ("delta",)

    @property
    def uses_metrics(self) -> bool:
        return False

    def check(self, model: nn.Module, training: Training) -> None:
        """Any model and any settings will do."""

    def init_client(self, params: Params) -> State:
        return {}

    def broadcast(self, server: State) -> Vectors:
        return {"params": server["params"]}

    def settle(self, client: State, sent: Vectors) -> State:
        return client


def require_plain_sgd(method: str, training: Training) -> None:
    """Raise `ConfigError` unless a step is lr times the direction.

    The method divides by the sum of the rates.
    """
    if training.optimizer != Sgd():
        raise ConfigError(
            f"{method} is derived for plain SGD steps; use training.optimizer=sgd without momentum"
        )


def require_own_decay(method: str, training: Training) -> None:
    """Raise `ConfigError` if the server adds to updates what clients do not know of."""
    if training.decay_on == "server":
        raise ConfigError(
            f"{method} keeps sums of updates at both ends, and what the server adds is in one of "
            "them alone; use training.decay_on=clients"
        )


def require_cross_entropy(method: str, training: Training) -> None:
    """Raise `ConfigError` unless the plan's criterion is the one inside the method's own loss."""
    if training.criterion.name != "cross_entropy":
        raise ConfigError(
            f"training.criterion is {training.criterion.name}, but {method} brings its own loss, "
            "made of cross_entropy; use training.criterion=cross_entropy, or another algorithm"
        )


def require_stages(method: str, model: nn.Module, *needed: str) -> None:
    """Raise `ConfigError` unless the model has these members of `Staged`."""
    if not all(hasattr(model, name) for name in needed):
        raise ConfigError(
            f"{method} needs a model with stages ({', '.join(needed)}): {', '.join(MODELS)} are; "
            f"{type(model).__name__} is not"
        )
