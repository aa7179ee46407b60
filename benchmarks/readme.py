"""The README's own part of the results, for `claims.py`: a block between two marks, never typed."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedwsq.core.errors import RunError
from fedwsq.report.compare import total_bytes
from fedwsq.report.estimate import estimate
from fedwsq.runs.reading import Reading
from kept import Side, percents, setting_words, shown, shown_factor
from lean import Scene
from overview import families, split_name, usual_length
from picture import ours
from verdicts import Verdict

START = "<!-- from the kept runs: python benchmarks/claims.py --write -->\n"
END = "<!-- until here -->\n"
GLANCE = "benchmarks/RESULTS.md#answers-at-a-glance"
WIDTH = 120  # of the README's lines
PLAIN = "fedacg + ws"  # our method in float32
# Rows of the second table, by what `side_name` calls them.
METHODS = ("fedavg", "fedws", "fedwsq 4 bits", "fedwsq 1 bits")
HEAD = (
    "to what FedAvg comes to",
    "FedAvg, MB",
    "`fedwsq-lean`, MB",
    "times less",
    "of these, the code",
)


def block(
    scenes: Sequence[Scene],
    settings: Mapping[tuple[str, ...], Mapping[str, Side]],
    verdicts: Mapping[str, Verdict],
) -> str:
    """Bytes to accuracy, accuracies by split, and which claims hold."""
    text = f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n"
    for scene in sorted(scenes, key=lambda scene: (-len(ours(scene)), -scene.rounds)):
        if ours(scene):
            text += _line(scene)
    for splits in families(settings):
        text += _accuracies(splits)
    return text + _claims(verdicts)


def _claims(verdicts: Mapping[str, Verdict]) -> str:
    """A line an answer, with the claims that have it."""
    if not verdicts:
        return ""
    text = f"\nThe paper's {len(verdicts)} claims, with small networks and short runs "
    text += f"([what each answer rests on]({GLANCE})):\n\n"
    for answer in Verdict:
        names = [name for name, verdict in verdicts.items() if verdict == answer]
        if names:
            words = f"- **{answer}** ({len(names)}): {'; '.join(names)}"
            text += textwrap.fill(words, WIDTH, subsequent_indent="  ") + "\n"
    return text


def _accuracies(splits: Mapping[str, Mapping[str, Side]]) -> str:
    """Methods down, splits across; nothing on one split alone, or where a method was never run."""
    run = {name for sides in splits.values() for name in sides}
    if len(splits) == 1 or not set(METHODS) <= run:
        return ""
    every = [side for sides in splits.values() for side in sides.values()]
    rounds = usual_length(every)
    words = setting_words(every[0].settings)
    words = words.replace(f"{split_name(every[0].settings)}, ", "")
    text = f"\nSmoothed accuracy in percent, {words}, after {rounds} rounds:\n\n"
    text += f"| method | {' | '.join(splits)} |\n|{'---|' * (1 + len(splits))}\n"
    reached = {split: _on_common_seeds(sides, rounds) for split, sides in splits.items()}
    for name in METHODS:
        cells = [name]
        for found in reached.values():
            cells.append(shown(percents(found[name]).mean) if name in found else "")
        text += f"| {' | '.join(cells)} |\n"
    return text


def _on_common_seeds(sides: Mapping[str, Side], rounds: int) -> dict[str, dict[int, Reading]]:
    """The methods of the table on the seeds that all of them have: seeds differ more than they."""
    reached = {}
    for name in METHODS:
        runs = sides[name].after(rounds) if name in sides else {}
        if runs:
            reached[name] = runs
    common = set.intersection(*(set(runs) for runs in reached.values())) if reached else set()
    found = {}
    for name, runs in reached.items():
        found[name] = {seed: run for seed, run in runs.items() if seed in common}
    return found


def _line(scene: Scene) -> str:
    """What FedAvg sends to where it ends, what ours does, and how many times less that is."""
    runs = ours(scene)
    costs = scene.costs(runs)
    theirs = scene.costs(scene.reference)
    levels = [100 * scene.target(seed) for seed in runs]
    cells = [f"{scene.words}, {scene.rounds} rounds: {_span(levels)} %"]
    if len(costs) < len(runs) or not costs.keys() <= theirs.keys():
        return f"| {' | '.join([*cells, *_not_held(scene, runs)])} |\n"
    plain = scene.least(PLAIN)
    cells.append(_span([theirs[seed] / 1e6 for seed in runs]))
    cells.append(_span([cost / 1e6 for cost in costs.values()], 2))
    cells.append(shown_factor([theirs[seed] / cost for seed, cost in costs.items()]))
    cells.append(shown_factor([plain[seed] / costs[seed] for seed in costs if seed in plain]))
    return f"| {' | '.join(cells)} |\n"


def _not_held(scene: Scene, runs: Mapping[int, Reading]) -> list[str]:
    """Where not every seed gets there: what the whole runs send, and where they end."""
    sent = {seed: sum(map(total_bytes, run.rows)) for seed, run in runs.items()}
    whole = scene.whole()
    times = shown_factor([whole[seed] / sent[seed] for seed in runs])
    above = scene.above(runs)
    where = "and ends {} points above"
    if sum(above) < 0:
        above = [-points for points in above]
        where = "but ends {} points below"
    return [
        f"{_span([whole[seed] / 1e6 for seed in runs])}, whole",
        f"{_span([value / 1e6 for value in sent.values()], 2)}, whole",
        f"{times}, {where.format(shown(estimate(above)))}",
        "",
    ]


def _span(values: Sequence[float], digits: int = 1) -> str:
    low = f"{min(values):.{digits}f}"
    high = f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def put(text: str, path: Path, mark: str = START) -> None:
    """Into a page, in the place of the block that is there: between its mark and the next end."""
    page = path.read_text()
    if page.count(mark) != 1 or END not in page.split(mark)[1]:
        raise RunError(f"{path} must have the line {mark.strip()} once, and {END.strip()} after it")
    before, rest = page.split(mark)
    _, after = rest.split(END, maxsplit=1)
    path.write_text(f"{before}{mark}\n{text}\n{END}{after}")
