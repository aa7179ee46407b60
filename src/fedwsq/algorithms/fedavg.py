"""FedAvg (McMahan et al., 2017, arXiv:1602.05629): the server adds the mean of the updates."""

from dataclasses import dataclass

from fedwsq.algorithms.base import Defaults
from fedwsq.algorithms.server_opt import Plain, ServerOptimizer
from fedwsq.core.tree import sub
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask, Loss


@dataclass(frozen=True)
class FedAvg(Defaults):
    """Clients train from the received model; the server moves by the mean of their updates.

    With `server = momentum` it is FedAvgM, with `server = adam` FedADAM. Methods that differ in
    nothing but what clients minimize have an `objective` of their own.
    """

    server: ServerOptimizer = Plain()

    def init_server(self, params: Params) -> State:
        return {"params": params, **self.server.init(params)}

    def objective(self, start: Params, task: LocalTask) -> Loss:
        """What a client minimizes that has received `start`: the plan's criterion."""
        return task.loss

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """delta = local - received."""
        start = received["params"]
        trained = task.train(start, loss=self.objective(start, task))
        return task.update(trained, delta=sub(trained.params, start)), client

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        return self.server.step(server, mean.vectors["delta"])
