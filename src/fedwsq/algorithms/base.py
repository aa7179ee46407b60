"""What a federated algorithm is: five pure functions over plain state."""

from typing import Protocol

from torch import nn

from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask


class Algorithm(Protocol):
    """A frozen dataclass whose fields are its hyper-parameters. State goes in and comes out; nothing is kept."""

    @property
    def sends(self) -> tuple[str, ...]:
        """Names of the vectors that go up."""
        ...

    def check(self, model: nn.Module) -> None:
        """Raise `ConfigError` when the model lacks what the method needs; asked before the first round."""
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

    def client_update(self, received: Vectors, client: State, task: LocalTask) -> tuple[Update, State]:
        """Train on the client's data and return the update with the client's new memory."""
        ...

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """The server's memory after the mean update of a round."""
        ...
