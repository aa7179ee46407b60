"""`fedwsq analyze`: why a run came out as it did."""

import argparse
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedwsq.analysis import ANALYSES, Found, Options, Subject, open_run
from fedwsq.analysis.kept import kept_numbers
from fedwsq.analysis.pictures import PICTURES
from fedwsq.analysis.repeat import first_difference, repeat
from fedwsq.cli.outputs import writing
from fedwsq.cli.plot import blank, save
from fedwsq.cli.trust import trusting
from fedwsq.core.errors import ConfigError, RunError, did_you_mean
from fedwsq.core.files import write_atomically
from fedwsq.core.threads import one_thread
from fedwsq.runs.reading import run_folders

NEEDS_ROUNDS = ("updates", "drift")
HEIGHTS = {"landscape": 7, "updates": 8}  # of pictures, in inches; others have 4
Results = dict[str, dict[str, Found]]  # analysis -> run -> what was found


def main(args: argparse.Namespace) -> int:
    """Analyse every run, write numbers as they come, draw and print all of them together."""
    options = Options(
        examples=args.examples,
        eigenvalues=args.eigenvalues,
        tolerance=args.tolerance,
        points=args.points,
        reach=args.reach,
        clients=args.clients,
        seed=args.seed,
        note=_note,
    )
    folders, asked = _sorted_out(args.words)
    out = args.out or folders[0] / "analysis"
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    for folder in folders:
        with _vouched(folder, args.trust):
            found = _analyse(folder, asked, args.repeat, options)
        for what, numbers in found.items():
            runs = results.setdefault(what, {})
            runs[_name(folder, runs)] = numbers
    Console(highlight=False, markup=False, emoji=False).print(table(results))
    _draw(results, out)
    return 0


def _analyse(
    folder: Path, asked: list[str], again: int | None, options: Options
) -> dict[str, Found]:
    """What was found in one run, which is also written into its directory."""
    subject = open_run(folder, _note)
    kept = subject
    if again is not None:
        kept = replace(subject, folder=_repeated(folder, again))
    results = {}
    for what in asked or _possible(kept):
        with one_thread():
            found = ANALYSES[what](kept if what in NEEDS_ROUNDS else subject, options)
        _write(folder / "analysis" / f"{what}.json", found)
        results[what] = found
    return results


def _repeated(folder: Path, number: int) -> Path:
    again = repeat(folder, number, lambda row: _note(f"repeated round {row.round}"))
    other = first_difference(folder, again)
    if other is not None:
        _note(
            f"{folder}: repeated, round {other} came to other weights than then, as it may with "
            "other versions or another processor; what is looked at is the repetition"
        )
    return again


def _vouched(folder: Path, trust: bool) -> AbstractContextManager[None]:
    config = folder / "config.toml"
    # Without one it is no run to look into, which is said in better words later.
    return trusting(config, (), trust) if config.exists() else nullcontext()


def _sorted_out(words: list[str]) -> tuple[list[Path], list[str]]:
    """Which words are runs, or hold some, and which are analyses; each of them once."""
    asked = [word for word in words if word in ANALYSES]
    paths = [Path(word) for word in words if word not in ANALYSES]
    if not paths:
        raise ConfigError("no run to analyse; name a run directory: fedwsq analyze RUN hessian")
    folders = []
    for path in paths:
        try:
            folders += run_folders(path)
        except RunError:
            near = did_you_mean(str(path), ANALYSES)
            offer = ", ".join(ANALYSES)
            raise ConfigError(
                f"{path} is neither a run directory, nor one that holds some, "
                f"nor one of {offer}{near}"
            ) from None
    return list(dict.fromkeys(folders)), list(dict.fromkeys(asked))


def _possible(subject: Subject) -> list[str]:
    """Everything that the run has kept enough for."""
    if kept_numbers(subject):
        return list(ANALYSES)
    missing = " and ".join(NEEDS_ROUNDS)
    why = "it kept no rounds; repeat it up to one with --repeat"
    if subject.plan.uplink.counts:
        why = "it adds codes up as integers, and no message has what one client learned"
    _note(f"{subject.folder}: no {missing}, {why}")
    return [what for what in ANALYSES if what not in NEEDS_ROUNDS]


def _name(folder: Path, taken: dict[str, Found]) -> str:
    """A run's name; the whole path where two have the same."""
    name = folder.absolute().name
    return str(folder) if name in taken else name


def _write(path: Path, found: Found) -> None:
    with writing(path, "make the run's directory writable, or analyze a copy of it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())


def _draw(results: Results, out: Path) -> None:
    for what, found in results.items():
        path = out / f"{what}.png"
        height = HEIGHTS.get(what, 4)
        try:
            figure = blank(path, max(8, 4 * len(found)), height)
        except ConfigError as error:
            _note(f"no pictures: {error}")
            return
        PICTURES[what](figure, found)
        save(figure, path)
        _note(f"drawn: {path}")


def table(results: Results) -> Table:
    """A line of figures for each run and analysis."""
    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for what, runs in results.items():
        for run, found in runs.items():
            made.add_row(what, run, LINES[what](found))
    return made


def _hessian(found: Found) -> str:
    tops = []
    for coordinates in ("raw", "effective", "relative"):
        top = found[coordinates]
        value = max(top["eigenvalues"], default=float("nan"))
        tops.append(f"{coordinates} {value:.4g}{'' if top['converged'] else ' (not converged)'}")
    return f"{', '.join(tops)}; {found['examples']} of {found['of_examples']} examples"


def _landscape(found: Found) -> str:
    # None, a loss that is not finite, becomes nan.
    worst = np.nanmax(np.array(found["loss"], np.float64))
    centre = np.float64(found["centre"])
    return f"loss {centre:.4g} at the centre, up to {worst:.4g}; {found['examples']} examples"


def _updates(found: Found) -> str:
    kurtoses = [f"{number}: {kept['kurtosis']:.2f}" for number, kept in found["rounds"].items()]
    last = list(found["rounds"].values())[-1]["equal_bytes"]["4"]
    errors = sorted(last["errors"].items(), key=lambda each: each[1])
    lost = ", ".join(f"{codec} {error:.3g}" for codec, error in errors)
    return (
        f"kurtosis by round {', '.join(kurtoses)}; {found['source']}; "
        f"lost at {last['bits']:.3f} bits: {lost}"
    )


def _drift(found: Found) -> str:
    rounds = found["rounds"].items()
    cosines = [f"{number}: {np.mean(kept['all']['cosine']):.3f}" for number, kept in rounds]
    return f"cosine to the mean by round {', '.join(cosines)}"


def _gradients(found: Found) -> str:
    layers = found["layers"].values()
    weight = np.mean([layer["weight"] for layer in layers])
    ones = np.mean([layer["ones"] for layer in layers])
    removed = np.mean([layer["removed"] for layer in layers])
    return (
        f"share of the squared gradient along the weight {weight:.3f}, along ones {ones:.3f}, "
        f"in the plane of both {removed:.3f}"
    )


def _scales(found: Found) -> str:
    rows = list(found["rounds"].values())
    if not rows:
        return "no shared scales in this run"
    said = f"median ratio {rows[0]['median']:.3f} at first, {rows[-1]['median']:.3f} at last"
    costs = [row["expected_error"] for row in rows]
    if None in costs:
        return said
    right = found["right_scale_error"]
    return f"{said}; on normal data that loses {max(costs) / right:.3f} times as much at worst"


LINES = {
    "hessian": _hessian,
    "landscape": _landscape,
    "updates": _updates,
    "drift": _drift,
    "gradients": _gradients,
    "scales": _scales,
}


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
