"""FedAvg (McMahan et al., 2017, arXiv:1602.05629): clients train, the server adds the mean of what they learned."""

from dataclasses import dataclass

from fedwsq.core.tree import add, sub
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask


@dataclass(frozen=True)
class FedAvg:
    """Clients train from the received model; the server adds the weighted mean of their updates."""

    @property
    def sends(self) -> tuple[str, ...]:
        """Only the update itself."""
        return ("delta",)

    def init_server(self, params: Params) -> State:
        """The model and nothing else."""
        return {"params": params}

    def init_client(self, params: Params) -> State:
        """Clients keep nothing between rounds."""
        return {}

    def broadcast(self, server: State) -> Vectors:
        """The model as it is."""
        return {"params": server["params"]}

    def client_update(self, received: Vectors, client: State, task: LocalTask) -> tuple[Update, State]:
        """delta = local - received."""
        trained = task.train(received["params"])
        return task.update(trained, delta=sub(trained.params, received["params"])), client

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """w <- w + mean delta."""
        return {**server, "params": add(server["params"], mean.vectors["delta"])}
