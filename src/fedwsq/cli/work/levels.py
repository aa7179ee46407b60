"""`fedwsq levels`: the quantization levels of DANUQ and of every other codec that has some."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from fedwsq.cli.plot import blank, save
from fedwsq.cli.start import loading
from fedwsq.codecs.levels import (
    best_scale,
    density,
    edges,
    levels,
    normal_bias,
    normal_entropy,
    normal_error,
)
from fedwsq.core.errors import ConfigError, did_you_mean


def main(args: argparse.Namespace) -> int:
    found = level_set(args.codec, args.bits, args.kind)
    # The figures are for data of unit variance, the levels in units of the codec's own scale.
    scaled = tuple(level * found.scale for level in found.levels)
    if args.plot:
        kind = args.kind or ("paper" if args.codec == "danuq" else "")
        title = " ".join(filter(None, (args.codec, kind)))
        bits = "1 bit" if args.bits == 1 else f"{args.bits} bits"
        plot(scaled, f"{title}, {bits}", args.plot)

    print("\n".join(f"{value: .10f}" for value in found.levels))
    if found.unit:
        print(
            f"scale   {found.scale:.6f} std, which loses least: "
            "the figures are for it and for nearest rounding;"
        )
        print(
            "        the levels are in units of a packet's own scale "
            f"({found.unit} unless set otherwise)"
        )
    print(f"mse     {normal_error(scaled):.7g}")
    print(f"bias    {normal_bias(scaled):.3g}")
    print(f"entropy {normal_entropy(scaled):.5f} bits")
    return 0


class LevelSet(NamedTuple):
    """Levels as a codec has them, and the scale at which they lose least on N(0, 1)."""

    levels: tuple[float, ...]
    scale: float = 1.0
    unit: str = ""  # what the levels are multiples of; "" is the std


def level_set(name: str, bits: int, kind: str | None = None) -> LevelSet:
    """The levels of a codec in the table; ConfigError when it has none."""
    # Plain numbers; the other codecs come with torch.
    if name == "danuq":
        return LevelSet(levels(bits, kind or "paper"))
    with loading():
        from fedwsq.codecs import CODECS
    if name not in CODECS:
        offer = f"{', '.join(CODECS)}{did_you_mean(name, CODECS)}"
        raise ConfigError(f"no codec {name!r}; there are {offer}")
    if name != "eden" and not callable(getattr(CODECS[name], "levels", None)):
        raise ConfigError(f"codec {name} has no fixed levels; try danuq or uq")

    codec = with_kind(CODECS[name], name, kind)
    codec.rates.require(bits, name, what="levels")
    # What EDEN quantizes is rotated, so nearly normal: its levels are the best for N(0, 1).
    if name == "eden":
        return LevelSet(levels(bits, "lloyd-max"))
    found = tuple(codec.levels(bits))
    return LevelSet(found, best_scale(found), codec.unit)


def with_kind(target: Any, name: str, kind: str | None) -> Any:
    """The codec, with the one setting of its own that knows this kind."""
    from fedwsq.codecs.grid import Grid

    if kind is None:
        return target()
    # Settings that all codecs with levels share say nothing about which levels they are.
    common = {f.name for f in fields(Grid)}
    own = [f.name for f in fields(target) if f.name not in common]
    hints = get_type_hints(target)
    words: list[str] = []
    for field in own:
        offer = get_args(hints[field])
        if kind in offer:
            return target(**{field: kind})
        words += [word for word in offer if isinstance(word, str)]
    raise ConfigError(
        f"{name} has no levels of kind {kind!r}; it has {', '.join(words) or 'only one kind'}"
    )


def plot(found: tuple[float, ...], title: str, file: Path) -> None:
    """Draw the levels as stems under the density of N(0, 1), and the edges of their cells."""
    figure = blank(file, 6, 3.2)
    axes = figure.subplots()
    reach = max(3.5, 1.1 * max(map(abs, found)))
    grid = [reach * (k / 200 - 1) for k in range(401)]
    axes.plot(grid, list(map(density, grid)), color="black", linewidth=1.2, label="N(0, 1)")
    axes.vlines(
        edges(found),
        0,
        density(0),
        color="0.75",
        linewidth=0.8,
        linestyle="dashed",
        label="cell edges",
    )
    heights = list(map(density, found))
    axes.stem(found, heights, linefmt="C0-", markerfmt="C0o", basefmt=" ", label="levels")
    axes.set(title=title, xlabel="x / std", ylabel="density")
    axes.set(xlim=(-reach, reach), ylim=(0, None))
    axes.legend(frameon=False, fontsize="small")
    save(figure, file)
