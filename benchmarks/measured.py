"""Claims that no accuracy answers, for `claims.py`: from other figures that are kept, or exactly.

Each function returns an answer and what it rests on. Figures of `fedwsq analyze` are of one seed.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from fedwsq import Danuq
from fedwsq.codecs.levels import levels, normal_error
from fedwsq.models import standardized
from fedwsq.plan.read import Settings
from fedwsq.report.compare import held_from, smoothed
from fedwsq.report.groups import describe_method
from fedwsq.runs.reading import Reading
from kept import Side, by_setting, percents, setting_words
from overview import families
from verdicts import Said, Verdict, lengths

RESULTS = Path(__file__).with_name("results")
NORMAL_KURTOSIS = 3.0
ROUNDING = 1e-9
HALF = 0.55  # "by half": no more than this is left
CANCELLED = 0.01  # of a layer's output: what a scale may change of it and still be gone
RHOS = (0.1, 0.01, 0.001, 0.0001)  # table 5
FOLLOWS = 0.01  # of a cosine: closer than that is alike
ONE_SEED = "one seed, 4 bits where the paper has drawn ones"
MANY = 10  # times: an error that is so much larger is another order of size


class Measured(NamedTuple):
    """As it stands on the page; `text` is what it rests on."""

    said: Said
    text: str


Measure: TypeAlias = Callable[[Sequence[Reading]], Measured]
NOT_RUN = Measured(Said(Verdict.NOT_RUN), "")


def analysed() -> dict[str, dict[str, Any]]:
    """What `fedwsq analyze` found, by method; see figure3.py."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "figure3.json").read_text())
    return found


def overall(found: Sequence[bool], why: str = "", alone: bool = False) -> Said:
    """The answer of several parts; what one seed alone shows holds as far as it was run."""
    if all(found):
        return Said(Verdict.SO_FAR if alone else Verdict.HOLDS, why)
    return Said(Verdict.IN_PART if any(found) else Verdict.NOT_HERE, why)


def errors_at(bits: int, table: str) -> dict[str, float]:
    """The last column of the rows of so many bits in `updates.md`, by codec."""
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == str(bits):
            found[cells[1]] = float(cells[-1])
    return found


def best_levels(runs: Sequence[Reading]) -> Measured:
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
    return Measured(overall(best), text)


def normal_updates(runs: Sequence[Reading]) -> Measured:
    found = analysed()
    said = []
    for name, figures in found.items():
        by_round = [f"{value:g} in round {number}" for number, value in figures["kurtosis"].items()]
        said.append(f"| {name} | {', '.join(by_round)} |")
    text = "Kurtosis of updates, the median over tensors and clients; normal is 3. CIFAR-10, "
    text += "ResNet-8, one seed\n(`results/figure3.json`).\n\n| method | kurtosis |\n|---|---|\n"
    # Half as much again is more than samples of this size scatter.
    far = max(found["fedwsq"]["kurtosis"].values()) > 1.5 * NORMAL_KURTOSIS
    return Measured(overall([not far]), text + "\n".join(said))


def least_error(runs: Sequence[Reading]) -> Measured:
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
    return Measured(overall(best), text + "\n".join(said))


def flattest(runs: Sequence[Reading]) -> Measured:
    """FedWSQ against the two methods that the sentence names, in each kind of coordinates."""
    found = analysed()
    lowest = []
    for kind in ("raw", "effective", "relative"):
        ours = found["fedwsq"]["top_eigenvalue"][kind][0]
        others = [found[name]["top_eigenvalue"][kind][0] for name in ("fedacg", "fedwon")]
        lowest.append(ours < min(others))
    return Measured(overall(lowest, ONE_SEED, alone=True), landscape_table())


def landscape_table() -> str:
    found = analysed()
    rounds = found["fedwsq"]["rounds"]
    text = (
        f"After {rounds} rounds of ResNet-8 on CIFAR-10 (`results/figure3.json`; the paper: 1,000 "
    )
    text += "of ResNet-18 on CIFAR-100).\nWhat the eigenvalue is depends on coordinates: "
    text += "docs/analysis.md.\n\n"
    text += (
        "| method | top eigenvalue, raw | effective | relative | loss |\n|---|---|---|---|---|\n"
    )
    for name, figures in found.items():
        values = [f"{each[0]:g}" for each in figures["top_eigenvalue"].values()]
        text += f"| {name} | {' | '.join(values)} | {figures['landscape']['centre']:g} |\n"
    return text


def fedsmoo_is_flat(runs: Sequence[Reading]) -> Measured:
    return _beside_fedwsq("fedsmoo", sharper=False)


def fedwon_is_sharp(runs: Sequence[Reading]) -> Measured:
    return _beside_fedwsq("fedwon", sharper=True)


def _beside_fedwsq(name: str, sharper: bool) -> Measured:
    """Whether a method's loss is higher, and whether it is sharper or flatter, raw."""
    other, ours = analysed()[name], analysed()["fedwsq"]
    higher = other["landscape"]["centre"] > ours["landscape"]["centre"]
    steeper = other["top_eigenvalue"]["raw"][0] > ours["top_eigenvalue"]["raw"][0]
    said = f"loss {'higher' if higher else 'lower'}, {'sharper' if steeper else 'flatter'}"
    answer = overall([higher, steeper == sharper], f"{said}; {ONE_SEED}", alone=True)
    return Measured(answer, "The table of [the flattest loss](#the-flattest-loss) has the numbers.")


def drift(runs: Sequence[Reading]) -> Measured:
    """How far clients' updates point the same way, with standardization and without."""
    ours, plain = (analysed()[name]["cosine_to_mean"] for name in ("fedwsq", "fedavg"))
    closer = [ours[number] > plain[number] + FOLLOWS for number in ours]
    text = "Cosine between a client's update and the mean of its round: drift makes it small "
    text += "(`results/figure3.json`).\n\n| round | FedWSQ | FedAvg |\n|---|---|---|\n"
    for number in ours:
        text += f"| {number} | {ours[number]:.3f} | {plain[number]:.3f} |\n"
    return Measured(overall(closer, "one seed; above by more than 0.01", alone=True), text)


def projection(runs: Sequence[Reading]) -> Measured:
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
    return Measured(overall(gone), f"{text}Whether that helps is another claim.")


def scale_is_cancelled(runs: Sequence[Reading]) -> Measured:
    """A layer and its group norm, with weights at each rho of table 5 against weights at 1."""
    generator = torch.Generator().manual_seed(0)
    weight = standardized(torch.randn(64, 64, 3, 3, generator=generator), 1.0, 0.0).detach()
    images = torch.randn(8, 64, 8, 8, generator=generator).relu()
    outputs = torch.nn.functional.conv2d(images, weight, padding=1)
    norm = torch.nn.GroupNorm(2, 64, eps=1e-5, affine=False)  # as in the networks here
    whole = norm(outputs)
    gone = []
    text = "What rho changes of a layer's output behind its group norm, whose eps of 1e-5 is added "
    text += "to a variance\nthat is rho squared as large: 64 channels, 3 by 3, standardized random "
    text += "weights.\n\n| rho | changed, % of the output |\n|---|---|\n"
    for rho in RHOS:
        changed = float((norm(rho * outputs) - whole).norm() / whole.norm())
        gone.append(changed < CANCELLED)
        text += f"| {rho:g} | {100 * changed:.2f} |\n"
    return Measured(overall(gone, "not where rho comes near to the norm's own eps"), text)


def nothing_besides_codes(runs: Sequence[Reading]) -> Measured:
    """What a packet of DANUQ carries besides its codes."""
    tensor = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    packet = Danuq().encode(tensor, torch.ones(1), 4, 0)
    text = (
        f"Levels never travel. Of a tensor at 4 bits {len(packet.code):,} bytes of codes do, and "
    )
    text += f"{4 * len(packet.side)} of its std,\nfrom which the server moves the shared scale; "
    text += "the scales go down with the model."
    return Measured(overall([True, len(packet.side) == 0]), text)


def absmax_underflows(runs: Sequence[Reading]) -> Measured:
    """Codes around the largest element against codes around the std, at the same bits."""
    table = (RESULTS / "updates.md").read_text()
    worse = []
    text = "Error over the energy of real updates, with standardization (`results/updates.md`).\n\n"
    text += "| bits | DANUQ, by std | uniform, by the largest | NF, by the largest |\n"
    text += "|---|---|---|---|\n"
    for bits in (1, 2, 4):
        errors = errors_at(bits, table)
        ours, even, normal = (errors[name] for name in ("danuq", "uq, nearest", "nf"))
        text += f"| {bits} | {ours:g} | {even:g} | {normal:g} |\n"
        if bits < 4:
            worse.append(min(even, normal) > MANY * ours)
    return Measured(overall(worse, "at 1 and 2 bits, by more than ten times"), text)


def under_skew(runs: Sequence[Reading]) -> Measured:
    """Whether FedWSQ is above FedAvg on every skewed split, and by more than without skew."""
    for splits in families(by_setting(runs)):
        above = {}
        for split, sides in splits.items():
            if {"fedwsq 4 bits", "fedavg"} <= set(sides):
                above[split] = _above(sides["fedwsq 4 bits"], sides["fedavg"])
        if len(above) > 1 and "iid" in above:
            break
    else:
        return NOT_RUN
    skewed = [value for split, value in above.items() if split != "iid"]
    parts = [min(skewed) > 0, max(skewed) > above["iid"]]
    text = "Points of smoothed accuracy above FedAvg in float32, over the seeds of both.\n\n"
    text += "| split | FedWSQ at 4 bits |\n|---|---|\n"
    text += "".join(f"| {split} | {value:.2f} |\n" for split, value in above.items())
    return Measured(overall(parts, "above FedAvg on every split; by more where it is skewed"), text)


def _above(left: Side, right: Side) -> float:
    rounds = lengths(left, right)[0]
    one = percents(left.after(rounds)).by_seed
    other = percents(right.after(rounds)).by_seed
    return statistics.fmean(one[seed] - other[seed] for seed in one.keys() & other.keys())


def of_any_split(settings: Settings) -> Settings:
    """What bytes do not depend on is left out: `cifar10, any split, 5 of 100 clients, resnet8`."""
    kept = {key: value for key, value in settings.items() if key != "data.partition.alpha"}
    return {**kept, "data.partition.name": "any split", "training.lr": 0.1, "eval_every": 1}


def uplink_first(runs: Sequence[Reading]) -> Measured:
    """The share that goes up, where each client has its own download and where one serves all."""
    shares: dict[tuple[str, str], tuple[float, float]] = {}
    for run in runs:
        name = describe_method(run.settings)
        if run.state == "finished" and name in ("fedavg", "fedwsq 4 bits", "fedwsq 1 bits"):
            up = sum(row.uplink_bytes for row in run.rows)
            down = sum(row.downlink_bytes for row in run.rows)
            once = down / int(str(run.settings["clients_per_round"]))
            words = setting_words(of_any_split(run.settings))
            shares[words, name] = (100 * up / (up + down), 100 * up / (up + once))
    plain = [each for (_, name), each in shares.items() if name == "fedavg"]
    if not plain:
        return NOT_RUN
    text = "| setting | method | upload, % of all bytes | where one broadcast reaches all |\n"
    text += "|---|---|---|---|\n"
    for (words, name), (alone, together) in sorted(shares.items()):
        text += f"| {words} | {name} | {alone:.1f} | {together:.1f} |\n"
    # In float32 both directions are equally long, but for headers.
    most = [all(each[way] > 55 for each in plain) for way in (0, 1)]
    return Measured(overall(most, "only where one broadcast reaches all; then it does"), text)


def half_the_cost(runs: Sequence[Reading]) -> Measured:
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
        return NOT_RUN
    text = (
        "Upload of a round over that at 4 bits. A mean of 2.33 bits is 0.58 of 4 before anything "
    )
    text += "else, and what is not coded stays: no run could make it half.\n\n"
    text += "| setting | method | share |\n|---|---|---|\n"
    return Measured(overall(shares), text + "\n".join(said))


def faster(runs: Sequence[Reading]) -> Measured:
    """In which round FedWS holds what FedAvg ends at, both smoothed, seed by seed."""
    text = "The round from which FedWS holds the smoothed accuracy that FedAvg ends at; empty "
    text += "where it does not.\n\n| setting | seed | FedWS | of rounds |\n|---|---|---|---|\n"
    sooner = []
    for sides in by_setting(runs).values():
        if not {"fedws", "fedavg"} <= set(sides):
            continue
        ours, plain = sides["fedws"], sides["fedavg"]
        for seed in sorted(ours.runs.keys() & plain.runs.keys()):
            rounds = min(side.runs[seed].rows[-1].round for side in (ours, plain))
            end = smoothed(plain.after(rounds)[seed])
            assert end is not None
            number = held_from(ours.after(rounds)[seed], end)
            sooner.append(number is not None and number < rounds)
            words = setting_words(ours.settings)
            text += f"| {words} | {seed} | {number or ''} | {rounds} |\n"
    if not sooner:
        return NOT_RUN
    return Measured(overall(sooner, f"in {sum(sooner)} of {len(sooner)} runs"), text)


MEASURES: dict[str, Measure] = {
    "best_levels": best_levels,
    "normal_updates": normal_updates,
    "least_error": least_error,
    "flattest": flattest,
    "fedsmoo_is_flat": fedsmoo_is_flat,
    "fedwon_is_sharp": fedwon_is_sharp,
    "drift": drift,
    "projection": projection,
    "scale_is_cancelled": scale_is_cancelled,
    "nothing_besides_codes": nothing_besides_codes,
    "absmax_underflows": absmax_underflows,
    "under_skew": under_skew,
    "uplink_first": uplink_first,
    "half_the_cost": half_the_cost,
    "faster": faster,
}
