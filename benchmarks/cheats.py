"""What one cheat of five can do where updates are counted: in plain, and under masks.

    python benchmarks/cheats.py OUT [CELL ...] [--write benchmarks/results/cheats.json]

The `linear` world of `attacks.py` at one bit: the quick start with a linear model, 40 rounds, in
each of which another of the five clients asked is a cheat. It lies in what it casts, before that is
masked; all else is as it should be, so that nobody can tell who it was. In plain an integer is as
wide as a vote, and the server throws away what is above; under masks it is as wide as the sum. Who
`knows` has seen the votes of all others, as nobody has: it is what a cheat could do at most.

A cell is the accuracy in percent, the mean over three seeds of the last five rounds, and how many
of the 40 rounds had no sum. What can be cast in plain is not run under masks again, which gives the
same weights, bit for bit. Attacks of `attacks.py` are on the same plan without counts, where the
rest travels in float32; their runs are kept in OUT. CELL, by default all, is a part of their names;
what is found joins what the file has. Takes some minutes.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attacks import LAST, LINEAR, SEEDS, run_cell
from fedwsq.core.seeds import derive
from fedwsq.federation.simulation import simulate
from fedwsq.federation.tally import LOG_RANGE, LOG_STEPS, REST_TOP, Tally
from fedwsq.federation.voter import Voter
from fedwsq.plan import Plan, load_plan
from fedwsq.secure.ring import Words
from fedwsq.transports import Order, Transport
from script import keep, parser

CPU = torch.device("cpu")
ONE_BIT = {
    **LINEAR,
    "uplink.codec": "danuq",
    "uplink.bits": 1,
    "aggregation": "uniform",
    "eval_every": 1,
}
PLAIN = {**ONE_BIT, "uplink.counts": True}
SECURE = {**ONE_BIT, "uplink.secure": True}

Others = Sequence[Sequence[Words]]  # what everybody else casts
# What a cheat makes of its own integers; the others' are for those who know.
Lie = Callable[[int, Tally, list[Words], Others], list[Words]]


# The lies: of spreads (ballot 0) or of votes (ballot 1).


def honest(ballot: int, tally: Tally, words: list[Words], others: Others) -> list[Words]:
    return words


def flipped(ballot: int, tally: Tally, words: list[Words], others: Others) -> list[Words]:
    """The opposite of its update: what any client may vote."""
    if ballot == 0:
        return words
    lies = []
    for coded, each in _tensors(tally, words):
        lies.append((tally.top if coded else 2 * REST_TOP) - each)
    return [*lies, words[-1]]


def far_rest(
    reaches: int, ballot: int, tally: Tally, words: list[Words], others: Others
) -> list[Words]:
    """Flipped, and the rest as many times as far as a client's may go, the other way."""
    if ballot == 0:
        return words
    lies = []
    for coded, each in _tensors(tally, flipped(ballot, tally, words, others)):
        side = np.where(each.astype(np.int64) >= REST_TOP, 1, -1)
        lies.append(each if coded else _cast(REST_TOP + reaches * REST_TOP * side, each))
    return [*lies, words[-1]]


def wide_spreads(
    log: float, ballot: int, tally: Tally, words: list[Words], others: Others
) -> list[Words]:
    """Flipped, and all spreads as large as can be said."""
    if ballot == 1:
        return flipped(ballot, tally, words, others)
    logs, moved = words
    return [_cast(np.full(len(logs), round(log * LOG_STEPS)), logs), np.ones_like(moved)]


def two_votes_more(ballot: int, tally: Tally, words: list[Words], others: Others) -> list[Words]:
    """Residues that are no votes; where all others say one, so many cannot have said it."""
    if ballot == 0:
        return words
    return [
        *(_cast(each.astype(np.int64) + 2 * coded, each) for coded, each in _tensors(tally, words)),
        words[-1],
    ]


def knows(ballot: int, tally: Tally, words: list[Words], others: Others) -> list[Words]:
    """The whole sum turned round, votes and rest, whatever the others cast."""
    if ballot == 0:
        return words
    lies = []
    for at, (coded, each) in enumerate(_tensors(tally, words)):
        theirs = sum(ballots[at].astype(np.int64) for ballots in others)
        most = tally.voters * (tally.top if coded else 2 * REST_TOP)
        total = theirs + each.astype(np.int64)
        lies.append(_cast(most - total - theirs, each))
    return [*lies, words[-1]]


def _tensors(tally: Tally, words: list[Words]) -> list[tuple[bool, Words]]:
    """Whether a tensor is coded, and what was cast of it."""
    names = tally.line.schema.names
    return [(name in tally.line.coded, each) for name, each in zip(names, words, strict=False)]


def _cast(lie: Any, like: Words) -> Words:
    """In the words of the ballot; negative ones wrap, as residues do."""
    found: Words = np.asarray(lie).astype(like.dtype)
    return found


HIGHEST = 2 * LOG_RANGE
CHEATS: dict[str, Lie] = {
    "plain: nobody cheats": honest,
    "plain: update flipped": flipped,
    "plain: flipped, rest at its reach": partial(far_rest, 1),
    "plain: flipped, spreads of 2^64": partial(wide_spreads, HIGHEST),
    "masked: flipped, rest at 4 times its reach": partial(far_rest, 4),
    "masked: flipped, spreads of 2^192": partial(wide_spreads, 2 * HIGHEST),
    "masked: two votes more": two_votes_more,
    "masked: knows all, turns the sum round": knows,
}
WITHOUT_COUNTS = ("nobody attacks", "sign flip", "update x -10", "uncoded 1e4")


class Cheat:
    """Sits in one client of each round, between what it casts and its masks."""

    def __init__(self, lie: Lie) -> None:
        self.lie = lie
        self.client = -1
        self.others: dict[int, list[Sequence[Words]]] = {0: [], 1: []}

    def take(self, client: int) -> None:
        """Move in."""
        self.client = client
        self.others = {0: [], 1: []}

    def __enter__(self) -> "Cheat":
        self.masked = masked = Voter._masked
        cheat = self

        def lying(
            voter: Voter, order: Any, asked: Any, ballot: int, layout: Any, words: list[Words]
        ) -> list[Words]:
            if order.key.client != cheat.client:
                cheat.others[ballot].append(words)
            else:
                tally = Tally(voter.charter.uplink, asked["voters"])
                words = cheat.lie(ballot, tally, words, cheat.others[ballot])
            return masked(voter, order, asked, ballot, layout, words)

        Voter._masked = lying  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        Voter._masked = self.masked  # type: ignore[method-assign]


class CheatLast:
    """Asks the cheat when all others have answered."""

    def __init__(self, inner: Transport, cheat: Cheat) -> None:
        self.inner = inner
        self.cheat = cheat

    def dispatch(self, body: bytes, orders: Sequence[Order], deadline: float | None = None) -> Any:
        last = sorted(orders, key=lambda order: order.key.client == self.cheat.client)
        return self.inner.dispatch(body, last, deadline)

    def close(self) -> None:
        self.inner.close()


def play(plan: Plan, lie: Lie) -> tuple[float, int]:
    """The accuracy in the end, and how many rounds had no sum."""
    empty = 0
    scores = []
    with tempfile.TemporaryDirectory() as folder, Cheat(lie) as cheat:
        simulation = simulate(plan)
        transport = CheatLast(simulation.serial(CPU, Path(folder) / "clients"), cheat)
        server = simulation.server(transport)
        for number in range(1, plan.rounds + 1):
            cohort = list(server.sample(number))
            cheat.take(cohort[derive(plan.seed, "attacker", number) % len(cohort)])
            record = server.step()
            empty += not record.replied
            scores.append(record.test_accuracy or 0.0)
    return 100 * statistics.fmean(scores[-LAST:]), empty


def counted(cell: str, seeds: Sequence[int]) -> dict[str, Any]:
    """One cell of a plan that counts."""
    settings = SECURE if cell.startswith("masked") else PLAIN
    plans = [load_plan("quickstart", {**settings, "seed": seed}) for seed in seeds]
    found = [play(plan, CHEATS[cell]) for plan in plans]
    row = summed([score for score, _ in found])
    return {**row, "empty_rounds": [empty for _, empty in found]}


def uncounted(attack: str, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """One cell of the same plan without counts."""
    scores = []
    for seed in seeds:
        folder = out / f"{attack} {seed}".replace(" ", "_")
        scores.append(run_cell(folder, "quickstart", {**ONE_BIT, "seed": seed}, attack))
    return summed([score for score in scores if score is not None])


def summed(scores: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": round(statistics.fmean(scores), 2) if scores else None,
        "seeds": [round(score, 2) for score in scores],
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("cells", nargs="*", metavar="CELL", default=[""])
    options.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    options.add_argument("--write", type=Path)
    args: argparse.Namespace = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cells = {cell: partial(counted, cell, args.seeds) for cell in CHEATS}
    for attack in WITHOUT_COUNTS:
        cells[f"without counts: {attack}"] = partial(uncounted, attack, args.seeds, args.out)
    for name, work in cells.items():
        if any(part in name for part in args.cells):
            keep(work(), name, args.write)


if __name__ == "__main__":
    main()
