"""FedAvg (McMahan et al., 2017, arXiv:1602.05629): clients train, the server adds the mean of what they learned."""

from dataclasses import dataclass

from fedwsq.algorithms.base import Defaults
from fedwsq.algorithms.server_opt import Plain, ServerOptimizer
from fedwsq.core.tree import sub
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask


@dataclass(frozen=True)
class FedAvg(Defaults):
    """Clients train from the received model; the server moves by the mean of their updates.

    With `server = momentum` it is FedAvgM, with `server = adam` FedADAM.
    """

    server: ServerOptimizer = Plain()

    def init_server(self, params: Params) -> State:
        """The model, and what the server's optimizer remembers."""
        return {"params": params, **self.server.init(params)}

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """delta = local - received."""
        trained = task.train(received["params"])
        return task.update(trained, delta=sub(trained.params, received["params"])), client

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """Hand the mean delta to the server's optimizer."""
        return self.server.step(server, mean.vectors["delta"])
