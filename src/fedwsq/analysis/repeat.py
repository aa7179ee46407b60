"""A run once more, up to a round, with that round kept: for runs that kept none."""

from dataclasses import replace
from pathlib import Path

from fedwsq.core.errors import ConfigError
from fedwsq.plan import RecordPlan
from fedwsq.runs.manifest import read_manifest
from fedwsq.runs.reading import read_run
from fedwsq.runs.run import Listener, Run, read_plan


def repeat(folder: Path, number: int, listener: Listener) -> Path:
    """Run it again up to round `number`, and keep that; the folder of the repetition."""
    plan = read_plan(folder, read_manifest(folder))
    if plan.training.schedule == "published":
        raise ConfigError(
            'training.schedule = "published" depends on rounds, so a part of the run cannot be '
            f"repeated; run it again with record.rounds=[{number}]"
        )
    if plan.privacy is not None:
        raise ConfigError(
            "with privacy, noise and who takes part are new each time, so the run cannot be "
            f"repeated; start one with record.rounds=[{number}]"
        )
    if not 1 <= number <= plan.rounds:
        raise ConfigError(f"--repeat is {number}, must be a round of the run, 1 to {plan.rounds}")
    again = folder / "analysis" / f"repeat-{number}"
    if (again / "summary.json").exists():
        return again  # done before
    plan = replace(plan, rounds=number, record=RecordPlan((number,)))
    if (again / "config.toml").exists():
        with Run.resume(again) as run:
            run.go([listener])
    else:
        with Run.create(plan, again) as run:
            run.go([listener])
    return again


def first_difference(folder: Path, again: Path) -> int | None:
    """The first round whose weights are not those of the run; None if all are.

    With the same versions on the same processor there is none.
    """
    before = {row.round: row.weights for row in read_run(folder).rows}
    for row in read_run(again).rows:
        if row.round in before and before[row.round] != row.weights:
            return row.round
    return None
