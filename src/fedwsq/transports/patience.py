"""How long a worker may take for one order before it counts as stuck."""

from fedwsq.transports.base import Order

# So generous that honest work never meets it, however busy the machine: only who is stopped, hangs
# or swaps does. A limit that work could meet would make results depend on the load.
LEAST_SECONDS = 600.0
TIMES_THE_SLOWEST = 20.0
UNTRIED_SECONDS = 3600.0  # before anything was measured


class Patience:
    """As many seconds as told, or 0: as earlier orders suggest."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._told = seconds
        self._slowest = 0.0
        self._largest = 1  # cost of an order that was answered

    def learn(self, order: Order, seconds: float) -> None:
        """An order was answered after so many seconds."""
        self._slowest = max(self._slowest, seconds)
        self._largest = max(self._largest, order.cost)

    def seconds(self, order: Order) -> float:
        if self._told:
            return self._told
        if not self._slowest:
            return UNTRIED_SECONDS
        larger = max(1.0, order.cost / self._largest)
        return max(LEAST_SECONDS, TIMES_THE_SLOWEST * larger * self._slowest)
