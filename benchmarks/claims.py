"""The paper's claims, answered from the runs that are kept.

    python benchmarks/claims.py             the page, printed
    python benchmarks/claims.py --write     RESULTS.md, its figures, the README's picture and tables

The page has first bytes to accuracy (`lean.py`) and all answers at a glance (`overview.py`), with
figures beside it; then every claim of `claims.toml`: its sentence and the two sides of its
comparison, each a method as `fedwsq compare` names it.

How runs become an answer stands in `verdicts.py`, with an example. Some claims are not about
accuracy (`measured.py`).
"""

import textwrap
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lean
import overview
import picture
import readme
from evidence import unpacked
from fedwsq.runs.reading import Reading
from kept import by_setting, shown
from measured import MEASURES
from script import parser
from verdicts import Compared, Kind, Noise, Said, Settings, comparisons, noises, verdict

CLAIMS = Path(__file__).with_name("claims.toml")
ROOT = CLAIMS.parent.parent
PAGE = "benchmarks/RESULTS.md"
README = "README.md"
PICTURE = "docs/curves.png"
WIDTH = 100  # of the page's own lines
PARTS = {"claim": "The paper's claims", "question": "Questions of our own"}


def table(found: Sequence[Compared]) -> str:
    if not found:
        return ""
    head = ("setting", "accuracy", "against", "difference", "MB up", "MB, both ways")
    text = f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    for each in found:
        setting = f"{each.setting}, {each.rounds} rounds"
        cells = [
            setting if each.counts else f"{setting} (not counted again)",
            f"{each.names[0]}: {shown(each.left.mean)}",
            f"{each.names[1]}: {shown(each.right.mean)}",
            shown(each.difference),
            f"{each.left.up_megabytes:.1f} and {each.right.up_megabytes:.1f}",
            f"{each.left.megabytes:.1f} and {each.right.megabytes:.1f}",
        ]
        text += f"| {' | '.join(cells)} |\n"
    return f"\n{text}"


class Answer(NamedTuple):
    """What is said of a claim, and what it rests on."""

    said: Said
    compared: Sequence[Compared]
    text: str


def answered(
    claim: Mapping[str, Any],
    settings: Settings,
    noise: Mapping[Kind, Noise],
    runs: Sequence[Reading],
) -> Answer:
    if "measure" in claim:
        found = MEASURES[claim["measure"]](runs)
        text = f"\n{found.text}\n" if found.text else ""
        return Answer(found.said, [], text)
    compared = comparisons(claim, settings, noise)
    return Answer(verdict(claim, compared), compared, table(compared))


def scatter(noise: Mapping[Kind, Noise]) -> str:
    """What a difference of one seed may be off by, in words."""
    text = ""
    for kind, each in sorted(noise.items()):
        what = "codes of one method" if kind.codes else "methods"
        where = f"{kind.data}, {kind.model}, {what}"
        text += f"- {where}: {each.half:.1f} points, of {each.freedom} degrees of freedom\n"
    return text


INTRODUCTION = """\
# What holds, and what it costs

Written by `python benchmarks/claims.py --write` from {count} runs in
`benchmarks/evidence`; its help says how a claim is judged. Any run is repeated with `python
benchmarks/evidence.py repeat NAME data.root=DIR`. Accuracies are smoothed ones in percent,
intervals are of 95 % over seeds.

{provenance}
"""


GLANCE = """
## Answers at a glance

![What the first side of each comparison is above the second]({figure})

A mark is one comparison, hollow where there is one seed; the short line is what the claim asks for.

An interval over several seeds is Student's, of 95 %. A comparison of one seed is given the scatter
of those that have several (what is left of accuracies by side and seed when a part for each is
taken out), and counts if it is clear of that:

{scatter}
"Holds" asks for every pair of the claim with several seeds; "as far as run" is less than that. Of
one pair in one setting the comparison with most seeds counts.
"""

ACCURACIES = """
## Accuracies

Smoothed, in percent, of all methods that can be compared: the same data, clients, model, local
training and broadcasts. The last column is the mean difference, seed by seed: splits and clients
of one seed are alike for all methods, and seeds differ more than methods do.
"""


def provenance(runs: Sequence[Reading]) -> str:
    """Where the runs are from, as their manifests say."""
    rounds = sum(run.rows[-1].round for run in runs)
    hours = sum(row.seconds for run in runs for row in run.rows) / 3600
    processors = Counter(run.facts.cpu for run in runs)
    dirty = sum(run.facts.commit.endswith("-dirty") for run in runs)
    said = ", ".join(f"{count} on {name}" for name, count in processors.most_common())
    text = f"{rounds:,} rounds took {hours:.0f} hours of shared machines with two cores: {said}. "
    text += "Between processors weights differ by rounding."
    if dirty:
        text += f" {dirty} runs were made with changes that no commit has: `repeat` says whether "
        text += "this version gives the same."
    return "\n".join(textwrap.wrap(text, WIDTH))


class Results(NamedTuple):
    """The page, and what its figures show."""

    text: str
    scenes: Sequence[lean.Scene]
    differences: Mapping[str, Sequence[Compared]]
    block: str  # the README's part

    def write(self, root: Path = ROOT) -> None:
        page = root / PAGE
        page.write_text(self.text)
        lean.draw(self.scenes, page.with_name(lean.FIGURE))
        overview.draw(self.differences, page.with_name(overview.FIGURE))
        readme.put(self.block, root / README)
        scene = picture.headline(self.scenes)
        if scene is not None:
            picture.draw(scene, root / PICTURE)


def results(asked: Mapping[str, Sequence[Mapping[str, Any]]], runs: Sequence[Reading]) -> Results:
    settings = by_setting(runs)
    noise = noises(settings)
    scenes = lean.told(runs)
    answers = {}
    details = ""
    for kind, title in PARTS.items():
        details += f"\n## {title}\n"
        for claim in asked[kind]:
            name = claim["name"]
            answers[name] = answered(claim, settings, noise, runs)
            details += f"\n### {name}\n\n> {claim['sentence']}\n> ({claim['where']})\n\n"
            details += f"**{answers[name].said}**\n{answers[name].text}"

    text = INTRODUCTION.format(count=len(runs), provenance=provenance(runs))
    text += lean.section(scenes)
    text += GLANCE.format(figure=overview.FIGURE, scatter=scatter(noise))
    text += "\n" + overview.verdicts({name: str(each.said) for name, each in answers.items()})
    text += ACCURACIES + overview.accuracies(settings)
    differences = {name: each.compared for name, each in answers.items()}
    said = {claim["name"]: answers[claim["name"]].said.verdict for claim in asked["claim"]}
    block = readme.block(scenes, settings, said)
    return Results(text + details, scenes, differences, block)


def read_claims() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(CLAIMS.read_text())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="put all of it into its place")
    args = options.parse_args()
    with unpacked() as runs:
        found = results(read_claims(), runs)
    if args.write:
        found.write()
    # Last: whoever reads only the first lines ends the script.
    print(found.text)


if __name__ == "__main__":
    main()
