"""SCAFFOLD, option II (Karimireddy et al., 2020, arXiv:1910.06378)."""

from dataclasses import dataclass

from torch import nn

from fedwsq.algorithms.base import Defaults, require_plain_sgd
from fedwsq.core.tree import add, axpy, scale, sub, zeros_like
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask, Training
from fedwsq.training.local import Gradient


@dataclass(frozen=True)
class Scaffold(Defaults):
    """Control variates correct every step: by the server's direction less the client's own.

    Twice the traffic both ways. Derived for the plain mean and plain SGD steps.
    """

    @property
    def sends(self) -> tuple[str, ...]:
        """The update and the change of the client's control variate."""
        return ("delta", "control")

    def check(self, model: nn.Module, training: Training) -> None:
        """It divides by the sum of the learning rates."""
        require_plain_sgd("scaffold", training)

    def init_server(self, params: Params) -> State:
        """c = 0."""
        return {"params": params, "control": zeros_like(params)}

    def init_client(self, params: Params) -> State:
        """c_i = 0."""
        return {"control": zeros_like(params)}

    def broadcast(self, server: State) -> Vectors:
        """The model and c."""
        return {"params": server["params"], "control": server["control"]}

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Step along gradient + c - c_i; the change of c_i is -c - delta / (sum of rates)."""
        start = received["params"]
        c = received["control"]
        correction = sub(c, client["control"])

        def direction(params: Params, gradient: Gradient) -> Params:
            return add(gradient(params), correction)

        trained = task.train(start, direction=direction)
        delta = sub(trained.params, start)
        change = axpy(-1 / trained.lr_sum, delta, scale(-1.0, c))
        return task.update(trained, delta=delta, control=change), client

    def settle(self, client: State, sent: Vectors) -> State:
        """c_i <- c_i + the change that the server adds to c: so c stays the mean of all c_i."""
        return {"control": add(client["control"], sent["control"])}

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """w <- w + mean delta; c <- c + (replied / population) mean change."""
        control = axpy(
            cohort.replied / cohort.population, mean.vectors["control"], server["control"]
        )
        return {"params": add(server["params"], mean.vectors["delta"]), "control": control}
