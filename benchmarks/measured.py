"""Claims that no accuracy answers, for `claims.py`: from other figures that are kept, or exactly.

Each function returns an answer and what it rests on.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from fedwsq.codecs.levels import levels, normal_error
from fedwsq.models import standardized
from fedwsq.report.compare import held_from
from fedwsq.report.groups import describe_method
from fedwsq.runs.reading import Reading
from lean import scenes

RESULTS = Path(__file__).with_name("results")
NORMAL_KURTOSIS = 3.0
ROUNDING = 1e-9
HALF = 0.55  # "by half": no more than this is left


class Answer(NamedTuple):
    """As it stands on the page; `text` is what it rests on."""

    verdict: str
    text: str


Measure: TypeAlias = Callable[[Sequence[Reading]], Answer]


def analysed() -> dict[str, dict[str, Any]]:
    """What `fedwsq analyze` found, by method; see figure3.py."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "figure3.json").read_text())
    return found


def overall(found: Sequence[bool]) -> str:
    """The answer of several parts."""
    if all(found):
        return "holds"
    return "holds in part" if any(found) else "does not hold here"


def best_levels(runs: Sequence[Reading]) -> Answer:
    """The published levels against the exact minimizers of the same cost."""
    best = []
    said = []
    for bits in (1, 2, 4):
        paper = normal_error(levels(bits, "paper"))
        optimal = normal_error(levels(bits, "optimal"))
        free = normal_error(levels(bits, "lloyd-max"))
        best.append(paper < 1.001 * optimal)
        said.append(f"| {bits} | {paper:.5f} | {optimal:.5f} | {free:.5f} |")
    head = "| bits | published | optimal, one level at zero | optimal |\n|---|---|---|---|\n"
    text = f"Expected squared error on N(0, 1), worked out exactly.\n\n{head}" + "\n".join(said)
    return Answer(overall(best), text)


def normal_updates(runs: Sequence[Reading]) -> Answer:
    found = analysed()
    said = []
    for name, figures in found.items():
        by_round = [f"{value:g} in round {number}" for number, value in figures["kurtosis"].items()]
        said.append(f"| {name} | {', '.join(by_round)} |")
    text = "Kurtosis of updates, the median over tensors and clients; normal is 3. CIFAR-10, "
    text += "ResNet-8, one seed\n(`results/figure3.json`).\n\n| method | kurtosis |\n|---|---|\n"
    # Half as much again is more than samples of this size scatter.
    far = max(found["fedwsq"]["kurtosis"].values()) > 1.5 * NORMAL_KURTOSIS
    return Answer("does not hold here" if far else "holds", text + "\n".join(said))


def least_error(runs: Sequence[Reading]) -> Answer:
    """DANUQ against the other codes on the updates of FedWSQ, at equal bytes."""
    by_round = analysed()["fedwsq"]["equal_bytes"]
    last = by_round[max(by_round, key=int)]
    best = []
    said = []
    for bits, figures in last.items():
        errors: Mapping[str, float] = figures["errors"]
        ordered = sorted(errors, key=lambda name: errors[name])
        best.append(ordered[0] == "danuq")
        said.append(f"| {bits} | {', '.join(f'{name} {errors[name]:g}' for name in ordered)} |")
    text = "Error at equal bytes over the energy of the update, on real updates of FedWSQ "
    text += "(`results/figure3.json`).\n\n| bits | codes, the best first |\n|---|---|\n"
    return Answer(overall(best), text + "\n".join(said))


def flattest(runs: Sequence[Reading]) -> Answer:
    found = analysed()
    kinds = ("raw", "effective", "relative")
    lowest = []
    for kind in kinds:
        top = {name: figures["top_eigenvalue"][kind][0] for name, figures in found.items()}
        lowest.append(min(top, key=lambda name: top[name]) == "fedwsq")
    said = []
    for name, figures in found.items():
        values = [f"{figures['top_eigenvalue'][kind][0]:g}" for kind in kinds]
        said.append(f"| {name} | {' | '.join(values)} | {figures['landscape']['centre']:g} |")
    rounds = found["fedwsq"]["rounds"]
    text = f"After {rounds} rounds of ResNet-8 on CIFAR-10, one seed (`results/figure3.json`; the "
    text += "paper: 1,000 of ResNet-18 on CIFAR-100).\nWhat the eigenvalue is depends on "
    text += "coordinates: docs/analysis.md.\n\n"
    text += "| method | top eigenvalue, raw | effective | relative | loss |\n"
    text += "|---|---|---|---|---|\n"
    return Answer(overall(lowest), text + "\n".join(said))


def projection(runs: Sequence[Reading]) -> Answer:
    """The gradient through standardization against both directions that it should lack."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 5, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(8, 5, 3, 3, generator=generator, dtype=torch.float64)
    out = standardized(weight, 1e-3, 0.0)
    (out * upstream).sum().backward()
    assert weight.grad is not None
    gradient = weight.grad.flatten(1)
    gone = []
    for direction in (torch.ones_like(gradient), out.detach().flatten(1)):
        cosine = torch.nn.functional.cosine_similarity(gradient, direction)
        gone.append(float(cosine.abs().max()) < ROUNDING)
    text = f"Random weights and upstream gradients in float64: cosines are below {ROUNDING:g}.\n"
    return Answer(overall(gone), f"{text}Whether that helps is another claim.")


def uplink_first(runs: Sequence[Reading]) -> Answer:
    shares: dict[str, list[float]] = {}
    for run in runs:
        name = describe_method(run.settings)
        if run.state != "finished" or not name.startswith("fedwsq") or "lean" in name:
            continue
        up = sum(row.uplink_bytes for row in run.rows)
        down = sum(row.downlink_bytes for row in run.rows)
        shares.setdefault(name, []).append(100 * up / (up + down))
    if not shares:
        return Answer("not run yet", "")
    said = [f"| {name} | {statistics.fmean(each):.1f} |" for name, each in sorted(shares.items())]
    most = max(statistics.fmean(each) for each in shares.values())
    text = "Every sampled client receives a model of its own in these counts; over a medium where "
    text += "one broadcast\nreaches all, the download counts once.\n\n"
    text += "| method | upload, % of all bytes |\n|---|---|\n"
    return Answer("holds" if most > 50 else "does not hold here", text + "\n".join(said))


def half_the_cost(runs: Sequence[Reading]) -> Answer:
    """Uploads of mixed bits over those at 4 bits, a round."""
    sent: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        if run.state == "finished":
            scene = (str(run.settings["model.name"]), str(run.settings["clients_per_round"]))
            up = sum(row.uplink_bytes for row in run.rows) / len(run.rows)
            name = describe_method(run.settings)
            sent.setdefault(scene, {}).setdefault(name, []).append(up)
    said = []
    shares = []
    for (model, asked), found in sent.items():
        for name in ("fedwsq per_client", "fedwsq per_round"):
            if name in found and "fedwsq 4 bits" in found:
                share = statistics.fmean(found[name]) / statistics.fmean(found["fedwsq 4 bits"])
                shares.append(share <= HALF)
                said.append(f"| {model}, {asked} a round | {name} | {share:.2f} |")
    if not shares:
        return Answer("not run yet", "")
    text = "Upload of a round over that at 4 bits; 2.33 bits are 0.58 of 4, and what is not coded "
    text += "stays.\n\n| setting | method | share |\n|---|---|---|\n"
    return Answer(overall(shares), text + "\n".join(said))


def faster(runs: Sequence[Reading]) -> Answer:
    """In which round FedWS is where FedAvg ends; nothing is said where neither holds that."""
    said = []
    sooner = []
    for scene in scenes(runs):
        for seed, run in scene.sides.get("fedws", {}).items():
            ours = held_from(run, scene.target(seed))
            theirs = held_from(scene.reference[seed], scene.target(seed))
            if ours is not None or theirs is not None:
                sooner.append((ours or math.inf) < (theirs or math.inf))
            cells = [scene.words, str(seed), str(ours or ""), str(theirs or ""), str(scene.rounds)]
            said.append(f"| {' | '.join(cells)} |")
    if not said:
        return Answer("not run yet", "")
    text = "The round from which the smoothed accuracy holds what FedAvg ends at; empty where it "
    text += "does not. A moving\naverage is behind: a short run need not hold its own end.\n\n"
    text += "| setting | seed | FedWS | FedAvg | rounds |\n|---|---|---|---|---|\n"
    verdict = overall(sooner) if sooner else "undecided"
    return Answer(verdict, text + "\n".join(said))


MEASURES: dict[str, Measure] = {
    "best_levels": best_levels,
    "normal_updates": normal_updates,
    "least_error": least_error,
    "flattest": flattest,
    "projection": projection,
    "uplink_first": uplink_first,
    "half_the_cost": half_the_cost,
    "faster": faster,
}
