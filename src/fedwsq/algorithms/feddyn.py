"""FedDyn (Acar et al., 2021, arXiv:2111.04263)."""

from dataclasses import dataclass

from torch import nn

from fedwsq.algorithms.base import Defaults, require_own_decay
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import add, axpy, sub, zeros_like
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask, Training
from fedwsq.training.local import Gradient


@dataclass(frozen=True)
class FedDyn(Defaults):
    """Each client bends its loss so that its own optimum and the server's agree.

    Its loss is CE - <g, w> + (alpha/2) |w - sent|^2. Derived for the plain mean. As in the FedACG
    code everything is in the loss (and so clipped), alpha is the same for all clients, and what is
    evaluated is w with its correction -h / alpha.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"alpha is {self.alpha}, must be above 0")

    def check(self, model: nn.Module, training: Training) -> None:
        """Both ends remember the same updates."""
        require_own_decay("feddyn", training)

    def init_server(self, params: Params) -> State:
        """h = 0."""
        return {"params": params, "h": zeros_like(params)}

    def init_client(self, params: Params) -> State:
        """g = 0."""
        return {"g": zeros_like(params)}

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train with the bent loss."""
        start = received["params"]
        g = client["g"]

        def direction(params: Params, gradient: Gradient) -> Params:
            return axpy(self.alpha, sub(params, start), sub(gradient(params), g))

        trained = task.train(start, direction=direction)
        delta = sub(trained.params, start)
        return task.update(trained, delta=delta), client

    def settle(self, client: State, sent: Vectors) -> State:
        """g <- g - alpha delta, with the delta that moves the server's h."""
        return {"g": axpy(-self.alpha, sent["delta"], client["g"])}

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """h <- h - alpha (replied / population) mean delta; w <- w + mean delta - h / alpha."""
        delta = mean.vectors["delta"]
        h = axpy(-self.alpha * cohort.replied / cohort.population, delta, server["h"])
        return {"params": axpy(-1 / self.alpha, h, add(server["params"], delta)), "h": h}
