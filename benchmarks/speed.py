"""Tables of size, speed and memory, from what was measured last: never typed.

    python benchmarks/speed.py             both tables, printed
    python benchmarks/speed.py --write     in README.md and benchmarks/README.md

From `results/bench.json` (`fedwsq bench all --json`), `foundation.json`, `secure.json`,
`soak.json` and `updates.md`, each written by the command that its rows name.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from measured import errors_at
from readme import put
from script import parser

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).with_name("README.md")
README = PAGE.parent.parent / "README.md"
MARK = "<!-- as measured: python benchmarks/speed.py --write -->\n"
SIGNS = {"higher": "at least", "lower": "at most"}
PERCENT = 100
GIGA = 1e9

Figures: TypeAlias = Mapping[str, Mapping[str, Any]]

# What the figures of `fedwsq bench` are, in the order of the table; others are in the file alone.
FIGURES = {
    "memcpy": "float32 bytes that numpy copies in a second on one core: the measure of codecs",
    "encode 4-bit / memcpy": (
        "a vector of 11,157,504 float32 (the coded weights of a ResNet-18) to packed codes and its "
        "std, bytes in a second over memcpy's"
    ),
    "encode 2-bit / memcpy": "",
    "encode 1-bit / memcpy": "",
    "encode 4-bit / plain torch": (
        "the same against `bucketize`, shifts and `std`, as one would write it in torch"
    ),
    "decode and add 4-bit / memcpy": (
        "packed codes straight into a running sum, float32 bytes of the sum a second over memcpy's"
    ),
    "decode and add 2-bit / memcpy": "",
    "decode and add 1-bit / memcpy": "",
    "decode and add 4-bit / plain torch": (
        "the same against shifts, a gather and two multiplications in torch"
    ),
    "ecq encode 1-bit / memcpy": "the entropy code, at 1 bit a weight",
    "ecq decode and add 1-bit / memcpy": "",
    "fold 1-bit ResNet-18 updates on a core": "whole replies read, checked and added up, a second",
    "memory after 1000 updates, growth": (
        "resident memory after a thousand of them less that before the first"
    ),
    "resnet18 step, WS / without": (
        "a training step with weight standardization over one without, in turn, each in a process "
        "set up as a worker is"
    ),
    "augmentation / ResNet-8 step": "flip and crop of a batch of 50 over a step on it",
    "resnet8 run / bare loops, samples a second": (
        "a round of two clients on two workers (broadcast, training with augmentation, coding, "
        "fold) against two processes that only train, on batches made beforehand"
    ),
    "resnet18 run / bare loops, samples a second": "the same for ResNet-18",
    "idle round, 100 clients, one process, no checkpoints": (
        "a round whose clients do not train, 25 kB model, 1 bit: what everything but training takes"
    ),
    "idle round, 100 clients, one process, a checkpoint a round": "",
    "idle round, 100 clients, 2 workers, no checkpoints": "",
    "idle round, 100 clients, 2 workers, a checkpoint a round": "",
    "memory, 100 clients, ResNet-18, 2 workers": (
        "proportional set size (PSS) of all processes together, at its highest"
    ),
    "round, 100,000 clients / 100": (
        "a round of 50 clients and its checkpoint, all clients having taken part before"
    ),
    "memory, 100,000 clients - 100": "what they add to a run over a million examples",
    "start to first row, 100,000 clients - 100": (
        "the same for the time from the command to the first row"
    ),
}


class Measured(NamedTuple):
    """All that the tables are made from."""

    machine: Mapping[str, Any]
    bench: Figures
    foundation: Mapping[str, Any]
    secure: Figures
    soak: Mapping[str, Any]
    errors: Mapping[str, float]  # of codecs at 4 bits, with weight standardization


def measured(results: Path = RESULTS) -> Measured:
    bench = _read(results / "bench.json")
    return Measured(
        bench["machine"],
        {each["name"]: each for each in bench["figures"]},
        _read(results / "foundation.json"),
        _read(results / "secure.json"),
        _read(results / "soak.json"),
        errors_at(4, (results / "updates.md").read_text()),
    )


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def machine_words(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, PyTorch {machine['torch']}, Python "
        f"{machine['python']}, {machine['date']}"
    )


def speed_table(found: Measured) -> str:
    """The figures of `fedwsq bench`, with their bars."""
    text = f"{machine_words(found.machine)}; medians of five repeats or more:\n\n"
    text += "| figure | median (spread) | must reach | what it is |\n|---|---|---|---|\n"
    for name, about in FIGURES.items():
        if name in found.bench:
            each = found.bench[name]
            span = f"{each['low']:.3g} to {each['high']:.3g}"
            cells = [name, f"{each['value']:.3g} {each['unit']} ({span})", bar(each), about]
            text += f"| {' | '.join(cells)} |\n"
    return text


def bar(each: Mapping[str, Any]) -> str:
    if each["must"] is None:
        return ""
    missed = "" if each["reached"] else " (missed)"
    return f"{SIGNS[each['better']]} {each['must']:g} {each['unit']}{missed}"


def readme_table(found: Measured) -> str:
    text = f"On {machine_words(found.machine)}.\n"
    text += "Bytes under masks, errors of codes and the last row are of the four days before.\n\n"
    text += "| what | figure | command |\n|---|---|---|\n"
    for what, figure, command in [*sizes(found), *speeds(found), *hardships(found)]:
        text += f"| {what} | {figure} | `{command}` |\n"
    return text


Line: TypeAlias = tuple[str, str, str]


def sizes(found: Measured) -> Sequence[Line]:
    foundation = "python benchmarks/foundation.py"
    replies = found.foundation["size"]["reply_bytes"]
    factors = found.foundation["size"]["factor"]
    lengths = "; ".join(f"{replies[bits]:,}" for bits in ("32", "4", "2", "1"))
    times = ", ".join(f"{factors[bits]:.1f}" for bits in ("4", "2", "1"))
    masked = found.secure["secure, 5 clients"]
    flower = found.secure["secaggplus, 5 clients"]
    start = found.foundation["quickstart"]
    return [
        (
            "one client's upload, ResNet-18: float32, 4, 2, 1 bits",
            f"{lengths} bytes: {times} times less",
            f"{foundation} size",
        ),
        (
            "the same under masks, 5 clients a round: `fedwsq-secure`, Flower's SecAgg+",
            f"{masked['up_bytes_a_client']:,}; {flower['up_bytes_a_client']:,} bytes: "
            f"{masked['up_bits_a_parameter']:.1f} and {flower['up_bits_a_parameter']:.0f} bits a "
            "parameter",
            "python benchmarks/secure.py",
        ),
        (
            "error at 4 bits on real ResNet-8 updates: DANUQ, EDEN, entropy-coded",
            f"{found.errors['danuq']}, {found.errors['eden']}, {found.errors['ecq']} of the "
            "update's energy",
            "python benchmarks/updates.py DATA_ROOT",
        ),
        (
            "quick start, three seeds: accuracy at 4 bits and in float32",
            f"{PERCENT * start['mean_4bit']:.1f} and {PERCENT * start['mean_float32']:.1f} %, "
            f"{start['uplink_factor']:.1f} times less upload",
            f"{foundation} quickstart",
        ),
    ]


def speeds(found: Measured) -> Sequence[Line]:
    bench = {name: each["value"] for name, each in found.bench.items()}
    encode = "encode 4-bit / "
    decode = "decode and add 4-bit / "
    run = " run / bare loops, samples a second"
    idle = "idle round, 100 clients, {}, no checkpoints"
    many = ", 100,000 clients - 100"
    entropy = [bench[f"ecq {what} 1-bit / memcpy"] for what in ("encode", "decode and add")]
    coded, added = [bench["memcpy"] * each for each in entropy]
    slower = PERCENT * (bench["resnet18 step, WS / without"] - 1)
    return [
        (
            "encode, decode-and-add at 4 bits, one core",
            f"{bench[encode + 'memcpy']:.2f} and {bench[decode + 'memcpy']:.2f} of memcpy; "
            f"{bench[encode + 'plain torch']:.0f} and {bench[decode + 'plain torch']:.0f} times "
            "plain torch",
            "fedwsq bench codec",
        ),
        (
            "the entropy code at 1 bit, one core: encode, decode-and-add",
            f"{coded:.2f} and {added:.2f} GB of float32 a second",
            "fedwsq bench codec",
        ),
        (
            "a run on two workers against two bare PyTorch loops, ResNet-18, ResNet-8",
            f"{PERCENT * bench['resnet18' + run]:.0f} and {PERCENT * bench['resnet8' + run]:.0f} "
            "% of their samples a second",
            "fedwsq bench step",
        ),
        (
            "weight standardization in a ResNet-18 step",
            f"{slower:.0f} %",
            "fedwsq bench step",
        ),
        (
            "everything but training, 100 clients",
            f"{bench[idle.format('2 workers')]:.0f} ms a round on two workers, "
            f"{bench[idle.format('one process')]:.0f} in one process",
            "fedwsq bench round",
        ),
        (
            "peak memory of a ResNet-18 run on CIFAR-10, 100 clients, 2 workers",
            f"{bench['memory, 100 clients, ResNet-18, 2 workers']:.1f} GB over all processes",
            "fedwsq bench round",
        ),
        (
            "100,000 clients instead of 100",
            f"a round takes {bench['round, 100,000 clients / 100']:.2f} times as long; "
            f"{bench['memory' + many]:.0f} MB and {bench['start to first row' + many]:.1f} s to "
            "start more",
            "fedwsq bench population",
        ),
        (
            "`fedwsq --help`",
            f"{bench['fedwsq --help']:.2f} s",
            "fedwsq bench start",
        ),
        (
            "`make run`, start to end",
            f"{found.foundation['quickstart']['seconds']:.0f} s",
            "python benchmarks/foundation.py quickstart",
        ),
    ]


def hardships(found: Measured) -> Sequence[Line]:
    soak = found.soak
    kills = soak["ends_of_the_server"]["server killed"]
    return [
        (
            f"{soak['minutes']:.0f} minutes of drops, damage, lies and {kills} kills",
            f"{soak['rounds_judged']:,} rounds: {soak['verdict']}",
            "python benchmarks/soak.py --minutes 33 --life 30 150",
        ),
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="put both into their places")
    args = options.parse_args()
    found = measured()
    tables = {README: readme_table(found), PAGE: speed_table(found)}
    for page, text in tables.items():
        if args.write:
            put(text, page, MARK)
    # Last: whoever reads only the first lines ends the script.
    print("\n".join(tables.values()))


if __name__ == "__main__":
    main()
