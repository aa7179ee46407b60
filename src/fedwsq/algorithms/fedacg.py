"""FedACG (Kim et al., 2024, arXiv:2201.03172)."""

from dataclasses import dataclass

from fedwsq.algorithms.base import Defaults
from fedwsq.algorithms.fedprox import Prox, proximal, require_prox
from fedwsq.core.errors import ConfigError
from fedwsq.core.ranges import FROM_0_TO_1, require
from fedwsq.core.tree import add, axpy, sub, zeros_like
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask


@dataclass(frozen=True)
class FedACG(Defaults):
    """Clients start from a look-ahead point w + lam m and are pulled towards it.

    The server keeps the momentum m. What is evaluated and saved is w, not the look-ahead point.
    `prox = "code"` has no half, as in FedProx.
    """

    lam: float = 0.85
    beta: float = 0.001
    prox: Prox = "code"

    def __post_init__(self) -> None:
        require_prox(self.prox)
        require(FROM_0_TO_1, lam=self.lam)
        if not self.beta >= 0:
            raise ConfigError(f"beta is {self.beta}, must not be negative")

    def init_server(self, params: Params) -> State:
        return {"params": params, "momentum": zeros_like(params)}

    def broadcast(self, server: State) -> Vectors:
        """The look-ahead point, in place of the model: no extra bytes."""
        return {"params": axpy(self.lam, server["momentum"], server["params"])}

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Train from the look-ahead point with a proximal term around it."""
        start = received["params"]
        trained = task.train(start, direction=proximal(start, self.beta, self.prox))
        return task.update(trained, delta=sub(trained.params, start)), client

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """m <- lam m + mean delta; w <- w + m, which is the mean of the clients' models."""
        momentum = axpy(self.lam, server["momentum"], mean.vectors["delta"])
        return {"params": add(server["params"], momentum), "momentum": momentum}
