"""FedSMOO (Sun et al., 2023, arXiv:2305.11584)."""

from dataclasses import dataclass

from torch import nn

from fedwsq.algorithms.base import Defaults, require_own_decay
from fedwsq.core.errors import ConfigError
from fedwsq.core.tree import add, axpy, norm, scale, sub, zeros_like
from fedwsq.core.types import Cohort, Params, State, Update, Vectors
from fedwsq.training import LocalTask, Sgd, Training
from fedwsq.training.local import Gradient


@dataclass(frozen=True)
class FedSMOO(Defaults):
    """FedDyn's consensus with sharpness-aware steps whose perturbation is regularised too.

    As in FL-Simulator: lam |w|^2 / 2 sits in the (unclipped) weight decay, and one small term of
    the published s update is dropped. Two passes a step; s travels down and mu up. Derived for the
    plain mean.
    """

    lam: float = 0.1
    rho: float = 0.1

    def __post_init__(self) -> None:
        for name in ("lam", "rho"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be above 0")

    @property
    def sends(self) -> tuple[str, ...]:
        """The update and the dual variable of the perturbation."""
        return ("delta", "mu")

    def check(self, model: nn.Module, training: Training) -> None:
        """Its decay is part of its gradient, which only SGD leaves as it is."""
        require_own_decay("fedsmoo", training)
        if not isinstance(training.optimizer, Sgd):
            raise ConfigError(
                "fedsmoo puts part of its gradient into the weight decay; "
                "use training.optimizer=sgd"
            )

    def init_server(self, params: Params) -> State:
        """s = 0, and 0 for the mean of all clients' h."""
        return {"params": params, "s": zeros_like(params), "h": zeros_like(params)}

    def init_client(self, params: Params) -> State:
        """h = mu = 0."""
        return {"h": zeros_like(params), "mu": zeros_like(params)}

    def broadcast(self, server: State) -> Vectors:
        """The model and s."""
        return {"params": server["params"], "s": server["s"]}

    def client_update(
        self, received: Vectors, client: State, task: LocalTask
    ) -> tuple[Update, State]:
        """Step along the gradient at a perturbed point, on the same batch."""
        start = received["params"]
        s = received["s"]
        h = client["h"]
        mu = client["mu"]

        def direction(params: Params, gradient: Gradient) -> Params:
            nonlocal mu
            ascent = sub(sub(gradient(params), mu), s)
            e = scale(self.rho / (float(norm(ascent)) + 1e-7), ascent)
            mu = sub(add(mu, e), s)
            return axpy(self.lam, sub(h, start), gradient(add(params, e)))

        trained = task.train(start, direction=direction, extra_decay=self.lam)
        delta = sub(trained.params, start)
        return task.update(trained, delta=delta, mu=mu), {"h": h, "mu": mu}

    def settle(self, client: State, sent: Vectors) -> State:
        """h <- h + delta, with the delta that moves the server's h; mu is the client's alone."""
        return {"h": add(client["h"], sent["delta"]), "mu": client["mu"]}

    def server_update(self, server: State, mean: Update, cohort: Cohort) -> State:
        """s <- rho mu / |mu|; h <- h + (replied / population) mean delta; w <- w + delta + h."""
        mu = mean.vectors["mu"]
        delta = mean.vectors["delta"]
        h = axpy(cohort.replied / cohort.population, delta, server["h"])
        s = scale(self.rho / (float(norm(mu)) + 1e-7), mu)
        return {"params": add(add(server["params"], delta), h), "s": s, "h": h}
