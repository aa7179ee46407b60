"""`fedwsq run --dry-run`: the resolved plan and what a run of it would cost."""

from fedwsq.cli.work import partition
from fedwsq.codecs import Fixed
from fedwsq.plan import Plan
from fedwsq.runs.forecast import Forecast
from fedwsq.runs.lines import human_bytes


def print_forecast(plan: Plan, found: Forecast) -> None:
    print(found.plan)
    print("\n".join(describe(plan, found)))


def describe(plan: Plan, found: Forecast) -> list[str]:
    """The lines after the plan itself."""
    title = f"{plan.data.load.name}, {plan.data.partition.name}"
    held = partition.of_data(title, found.held.split, found.held.dataset, found.held.kept)
    whole = duration(plan.rounds * found.round_seconds)
    return [
        f"# clients: {plan.data.clients}, {plan.clients_per_round} a round; "
        f"{found.test_examples} examples to evaluate on",
        *(f"#   {line}" for line in partition.describe(held)),
        f"# model: {found.parameters:,} parameters that travel; {plan.training.precision}",
        describe_bytes(plan, found),
        f"# time, a guess from one batch: {found.round_seconds:.3g} s of training a round "
        f"({found.steps:.0f} steps a client), {whole} in all; evaluation comes on top",
        f"# memory, a guess: {human_bytes(found.memory_bytes)} over all processes",
        "# nothing was written; leave --dry-run out to start it",
    ]


def describe_bytes(plan: Plan, found: Forecast) -> str:
    at_most = "" if found.exact else "at most "
    up = human_bytes(found.uplink_bytes)
    down = human_bytes(found.downlink_bytes)
    if not all(isinstance(link.bits, Fixed) for link in (plan.uplink, plan.downlink)):
        return f"# bytes of the first round: {at_most}{up} up, {down} down; bits vary"
    if plan.downlink.mode == "start":
        later = "later broadcasts are longer"
        return f"# bytes of the first round: {at_most}{up} up, {down} down; {later}"
    both = human_bytes(plan.rounds * (found.uplink_bytes + found.downlink_bytes))
    return (
        f"# bytes a round: {at_most}{up} up, {down} down; {at_most}{both} in {plan.rounds} rounds"
    )


def duration(seconds: float) -> str:
    """`42 s`, `3.5 minutes` or `12 hours`."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.3g} minutes"
    return f"{seconds / 3600:.3g} hours"
