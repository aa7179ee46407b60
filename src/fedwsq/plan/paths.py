"""Where the files of a run lie, as far as its plan says so."""

from pathlib import Path
from typing import Any

from fedwsq.plan.build import make_plan
from fedwsq.plan.dump import plan_settings
from fedwsq.plan.settings import Plan

# They may change when a run is resumed, as long as the files' contents do not.
PLACES = ("data.root", "data.path", "data.partition.path", "channels.path", "model.init")


def places(plan: Plan) -> dict[str, str]:
    """Where the plan says that its files lie, by key."""
    settings = plan_settings(plan)
    found: dict[str, str] = {}
    for key in PLACES:
        value: Any = settings
        # A data set or a split may have no such setting.
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            found[key] = value
    return found


def locate(plan: Plan) -> Plan:
    """The plan with those places written out in full, so that they are found from any folder."""
    here = places(plan)
    full = {key: str(Path(place).expanduser().absolute()) for key, place in here.items()}
    if full == here:
        return plan
    return make_plan(plan_settings(plan), full)
