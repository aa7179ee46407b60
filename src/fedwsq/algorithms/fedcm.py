"""FedCM (Xu et al., 2021, arXiv:2106.10874)."""

from dataclasses import dataclass

from torch import nn

from fedwsq.algorithms.base import Defaults, require_plain_sgd
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import add, axpy, scale, sub, zeros_like
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask, Training
from fedwsq.training.local import Gradient


@dataclass(frozen=True)
class FedCM(Defaults):
    """A client's step is alpha of its gradient and 1 - alpha of the last round's mean direction.

    That direction travels down and is measured with the learning rates of the round it comes from.
    Steps are those of plain SGD.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"alpha is {self.alpha}, must be above 0 and at most 1")

    @property
    def uses_metrics(self) -> bool:
        return True  # the sum of the learning rates

    def check(self, model: nn.Module, training: Training) -> None:
        require_plain_sgd("fedcm", training)

    def init_server(self, params: Params) -> State:
        return {"params": params, "direction": zeros_like(params)}

    def broadcast(self, server: State) -> Vectors:
        return {"params": server["params"], "direction": server["direction"]}

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Step along alpha gradient + (1 - alpha) D."""
        start = received["params"]
        # The same at every step of the round.
        shared = scale(1 - self.alpha, received["direction"])

        def direction(params: Params, gradient: Gradient) -> Params:
            return axpy(self.alpha, gradient(params), shared)

        trained = task.train(start, direction=direction)
        return task.update(trained, delta=sub(trained.params, start)), client

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """D <- -mean delta / (sum of learning rates); w <- w + mean delta."""
        delta = mean.vectors["delta"]
        direction = server["direction"]
        # A sum that no client can have had says nothing of the direction.
        lr_sum = mean.metrics.get("lr_sum", 0.0)
        if lr_sum > 0:
            direction = scale(-1 / lr_sum, delta)
        return {"params": add(server["params"], delta), "direction": direction}
