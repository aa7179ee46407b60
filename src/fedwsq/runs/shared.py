"""What runs in a row have in common: worker processes, and the data they have loaded."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwsq.federation.simulation import LastLoaded, site_setup
from fedwsq.plan import Plan
from fedwsq.runs.backend import Backend, Machine, Simulated
from fedwsq.transports import Answer, Order, Pool, Transport


class Shared:
    """A `BackendFactory` whose backends hand workers and data on to the next.

    It decides where things happen and never what: a run gives the same weights with it.
    """

    def __init__(self) -> None:
        self.load = LastLoaded()
        self._pool: Pool | None = None
        self._machine: Machine | None = None

    def __call__(self, plan: Plan, machine: Machine) -> Backend:
        return _Guest(plan, machine, self)

    def lend(self, plan: Plan, machine: Machine, store: Path) -> Transport:
        """Workers that serve this plan; those of another machine are let go."""
        setup = site_setup(plan, machine.device, store)
        if self._pool is None or self._machine != machine:
            self.close()
            self._pool = Pool(setup, machine.workers, machine.device, plan.patience)
            self._machine = machine
        else:
            self._pool.adopt(setup, plan.patience)
        return _Lent(self._pool)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class _Guest(Simulated):
    """All clients on this machine, with workers that were there before and stay."""

    def __init__(self, plan: Plan, machine: Machine, shared: Shared) -> None:
        super().__init__(plan, machine, shared.load)
        self._shared = shared

    def transport(self, store: Path) -> Transport:
        if self.machine.workers == 1:
            return super().transport(store)
        return self._shared.lend(self.charter.plan, self.machine, store)


class _Lent:
    """A transport that a run may close without harm."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def dispatch(
        self, body: bytes, orders: Sequence[Order], deadline: float | None = None
    ) -> Iterator[Answer]:
        return self._inner.dispatch(body, orders, deadline)

    def close(self) -> None:
        """It belongs to somebody else."""
