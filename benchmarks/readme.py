"""The README's own part of the results, for `claims.py`: a block between two marks, never typed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedwsq.core.errors import RunError
from kept import Side, shown_factor
from lean import Scene
from overview import Matrix, matrices
from picture import ours

START = "<!-- from the kept runs: python benchmarks/claims.py --write -->\n"
END = "<!-- until here -->\n"
PLAIN = "fedacg + ws"  # our method in float32
# Rows of the second table, by what `side_name` calls them.
METHODS = ("fedavg", "fedws", "fedwsq 4 bits", "fedwsq 2 bits", "fedwsq 1 bits")
HEAD = (
    "to what FedAvg comes to",
    "FedAvg, MB",
    "`fedwsq-lean`, MB",
    "times less",
    "of these, the code",
)


def block(scenes: Sequence[Scene], settings: Mapping[tuple[str, ...], Mapping[str, Side]]) -> str:
    text = f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n"
    for scene in sorted(scenes, key=lambda scene: -max(scene.whole().values())):
        if ours(scene):
            text += _line(scene)
    for matrix in matrices(settings):
        chosen = matrix.only(METHODS)
        # One split alone is in RESULTS.md: here it is about how skewed the data is.
        if len(chosen.cells) == len(METHODS) and len(chosen.splits) > 1:
            text += f"\n{_title(chosen)}\n\n{chosen.text()}"
    return text


def _title(matrix: Matrix) -> str:
    return f"Smoothed accuracy in percent, {matrix.words}:"


def _line(scene: Scene) -> str:
    """What is sent to FedAvg's accuracy: its whole run, ours to there, and how many times less."""
    runs = ours(scene)
    costs = scene.costs(runs)
    whole = scene.whole()
    levels = [100 * scene.target(seed) for seed in runs]
    where = f"{scene.words}, {scene.rounds} rounds: {_span(levels)} %"
    cells = [where, _span([whole[seed] / 1e6 for seed in runs])]
    if len(costs) < len(runs):
        cells += [f"held by {len(costs)} of {len(runs)} seeds", "", ""]
        return f"| {' | '.join(cells)} |\n"
    plain = scene.least(PLAIN)
    cells.append(_span([cost / 1e6 for cost in costs.values()], 2))
    cells.append(shown_factor([whole[seed] / cost for seed, cost in costs.items()]))
    cells.append(shown_factor([plain[seed] / costs[seed] for seed in costs if seed in plain]))
    return f"| {' | '.join(cells)} |\n"


def _span(values: Sequence[float], digits: int = 1) -> str:
    low = f"{min(values):.{digits}f}"
    high = f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def put(text: str, path: Path) -> None:
    """Into the README, in the place of the block that is there."""
    page = path.read_text()
    if page.count(START) != 1 or page.count(END) != 1:
        raise RunError(f"{path} must have the lines {START.strip()} and {END.strip()}, once each")
    before, rest = page.split(START)
    _, after = rest.split(END)
    path.write_text(f"{before}{START}\n{text}\n{END}{after}")
