"""What the noise of a run is worth: epsilon, counted from what was sent and not from the plan."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedwsq.core.files import count_one, counted
from fedwsq.federation.memory import RELEASES
from fedwsq.plan import Plan, Privacy
from fedwsq.transports import Answer, Order, Transport
from fedwsq.wire import Kind, kind_of

FILE = "privacy.json"
ASKED = "privacy.rounds"  # a byte for every round that was begun, those of lost attempts too
UNREPEATABLE = (
    "privacy: noise and sampling come from the operating system, so this run cannot be repeated"
)
INSTALL = "pip install 'fedwsq[privacy]' to have epsilon"


class Counting:
    """A transport around a transport: counts rounds before their orders go out."""

    def __init__(self, inner: Transport, path: Path) -> None:
        self.inner = inner
        self.path = path

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        if orders and kind_of(orders[0].head) is Kind.ORDER:
            count_one(self.path)
        yield from self.inner.dispatch(body, orders, deadline)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class Spent:
    """The privacy that a run has spent so far; the unit is a client with all its examples.

    None: no noise, or nothing to count with.
    """

    clip: float
    noise: float
    delta: float
    rounds: int  # those begun
    releases: int  # noised updates of the client that sent most; `rounds` where nobody knows
    epsilon_server: float | None  # against whoever sees each client's messages
    epsilon_model: float | None  # against whoever sees all models, and not who took part
    note: str = ""

    def text(self) -> str:
        """As `privacy.json` has it."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def line(self) -> str:
        """For people."""
        if self.epsilon_server is None or self.epsilon_model is None:
            return f"privacy: {self.note}"
        return (
            f"privacy at delta {self.delta:g}, of a client: epsilon {self.epsilon_server:.4g} "
            f"against the server ({self.releases} updates of one client), "
            f"{self.epsilon_model:.4g} of the model ({self.rounds} rounds)"
        )


def spent(plan: Plan, privacy: Privacy, folder: Path) -> Spent:
    """What a run in `folder` has spent."""
    rounds = counted(folder / ASKED)
    # Clients on other machines count on their own disks: here they sent one in every round.
    counts = [counted(path) for path in folder.glob(f"clients/*/{RELEASES}")]
    releases = max(counts, default=rounds)
    plain = (privacy.clip, privacy.noise, privacy.delta, rounds, releases)
    if not privacy.noise:
        return Spent(*plain, None, None, "privacy.noise is 0: clipping alone protects nobody")
    if not rounds or not releases:
        return Spent(*plain, 0.0, 0.0)
    try:
        server = epsilon_server(privacy, releases)
        model = epsilon_model(privacy, plan.data.clients, plan.clients_per_round, rounds)
        # Where sampling hides next to nothing, the bound without it is the better one.
        model = min(model, epsilon_server(privacy, rounds))
    except ImportError:
        return Spent(*plain, None, None, INSTALL)
    return Spent(*plain, server, model)


def epsilon_server(privacy: Privacy, releases: int) -> float:
    """The server sees every noised update, and knows whose it is: nothing is hidden by sampling.

    Other data moves an update by 2 clip at most, so that is what the noise is measured in; k
    Gaussian releases are one with a k-th of the variance (Dong, Roth, Su, 2022).
    """
    import dp_accounting

    sigma = privacy.noise / 2 / releases**0.5
    return float(dp_accounting.get_epsilon_gaussian(sigma, privacy.delta))


def epsilon_model(privacy: Privacy, clients: int, sampled: int, rounds: int) -> float:
    """Who sees only models does not know who took part: sampling of a fixed size hides clients.

    Only a client's own noise counts: updates are coded, and perhaps clipped by the server, one by
    one, so the noise of the others does not simply add up. Wang, Balle, Kasiviswanathan (2019).
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation)
    event = dp_accounting.GaussianDpEvent(privacy.noise / 2)
    sampling = dp_accounting.SampledWithoutReplacementDpEvent(clients, sampled, event)
    accountant.compose(sampling, rounds)
    return float(accountant.get_epsilon(privacy.delta))
