"""Pictures of what was found, runs side by side; figures are matplotlib's, made by the caller."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedwsq.analysis.subject import Found

Results: TypeAlias = Mapping[str, Found]  # by run
Draw: TypeAlias = Callable[[Any, Results], None]
COORDINATES = ("raw", "effective", "relative")
LEVEL_BITS = 4  # of the levels over a histogram
STRIP = 0.06  # of a panel's height, for the levels of one codec


def whole_numbers(axis: Any) -> None:
    """Marks at whole numbers only: nothing has half a round, a client or a class."""
    axis.get_major_locator().set_params(integer=True)


def draw_hessian(figure: Any, results: Results) -> None:
    """The largest eigenvalue of every run, in each of the coordinates."""
    names = list(results)
    for axes, coordinates in zip(figure.subplots(1, 3), COORDINATES, strict=True):
        tops = [max(found[coordinates]["eigenvalues"], default=0.0) for found in results.values()]
        axes.bar(names, tops)
        axes.set(title=f"{coordinates} coordinates", yscale="log" if min(tops) > 0 else "linear")
        axes.tick_params(axis="x", rotation=45)
    figure.axes[0].set_ylabel("largest Hessian eigenvalue")


def draw_landscape(figure: Any, results: Results) -> None:
    """Surfaces above, contours below, all on one scale of colours."""
    losses = [np.array(found["loss"], np.float64) for found in results.values()]
    low = min(float(np.nanmin(loss)) for loss in losses)
    # Far out the loss grows without bound; the colours are for what is near.
    high = max(float(np.nanquantile(loss, 0.8)) for loss in losses)
    count = len(results)
    for index, (name, found) in enumerate(results.items(), 1):
        a, b = np.meshgrid(found["steps"], found["steps"], indexing="ij")
        loss = np.minimum(np.array(found["loss"], np.float64), high)
        above = figure.add_subplot(2, count, index, projection="3d")
        above.plot_surface(a, b, loss, cmap="viridis", vmin=low, vmax=high)
        above.set(title=name, zlim=(low, high))
        below = figure.add_subplot(2, count, count + index)
        drawn = below.contourf(a, b, loss, np.linspace(low, high, 20), cmap="viridis")
        below.set(xlabel="first direction", ylabel="second direction")
    figure.colorbar(drawn, ax=below, label="test loss")


def draw_updates(figure: Any, results: Results) -> None:
    """Histogram with levels, Q-Q, errors at equal bytes of the last kept round; kurtosis of all."""
    cells = figure.subplots(2, 2)
    draw_histogram(cells[0, 0], results)
    draw_quantiles(cells[0, 1], results)
    draw_errors(cells[1, 0], results)
    draw_kurtosis(cells[1, 1], results)


def draw_histogram(axes: Any, results: Results) -> None:
    """All layers together, and where codecs have their levels over the first run's updates."""
    for name, found in results.items():
        last = last_round(found)
        edges = np.array(found["bins"])
        share = np.mean([layer["share"] for layer in last["layers"].values()], axis=0)
        axes.stairs(share / np.diff(edges), edges, label=f"{name}: kurtosis {last['kurtosis']:.2f}")
    x = np.linspace(-4, 4, 200)
    axes.plot(x, np.exp(-x * x / 2) / np.sqrt(2 * np.pi), "k--", linewidth=1, label="N(0, 1)")
    codecs = last_round(next(iter(results.values())))["codecs"]
    marks = {}
    for name, rates in codecs.items():
        if str(LEVEL_BITS) in rates and "levels" in rates[str(LEVEL_BITS)]:
            marks[name] = rates[str(LEVEL_BITS)]["levels"]
    reach = float(edges[-1])
    axes.set(yscale="log", xlim=(-reach, reach))
    colours = [f"C{number + len(results)}" for number in range(len(marks))]
    draw_strips(axes, marks, colours)
    title = f"{LEVEL_BITS}-bit levels of {', '.join(marks)} (from above)"
    axes.set(xlabel="update / std", ylabel="density")
    axes.set_title(title, fontsize="medium")
    axes.legend(fontsize="x-small", loc="lower center")


def draw_strips(axes: Any, marks: Mapping[str, Sequence[float]], colours: Sequence[str]) -> None:
    """The levels of each codec in a strip of its own above the curves: none hides another."""
    for number, (name, places) in enumerate(marks.items()):
        top = 0.98 - STRIP * number
        low, high = axes.get_xlim()
        axes.vlines(
            [place for place in places if low <= place <= high],
            top - 0.8 * STRIP,
            top,
            transform=axes.get_xaxis_transform(),
            color=colours[number],
            lw=1.6,
            label=name,
        )
    # Room for the strips, in shares of the height.
    bottom, highest = axes.get_ylim()
    room = 1 - STRIP * len(marks)
    if axes.get_yscale() == "log":
        axes.set_ylim(bottom, bottom * (highest / bottom) ** (1 / room))
    else:
        axes.set_ylim(bottom, bottom + (highest - bottom) / room)


def draw_quantiles(axes: Any, results: Results) -> None:
    """Quantiles of updates against those of the normal distribution, the mean over layers."""
    for name, found in results.items():
        layers = last_round(found)["layers"].values()
        mean = np.mean([layer["quantiles"] for layer in layers], axis=0)
        axes.plot(found["normal_quantiles"], mean, ".", label=name)
    axes.plot([-3, 3], [-3, 3], "k--", linewidth=1)
    axes.set(xlabel="quantile of N(0, 1)", ylabel="quantile of updates")


def draw_errors(axes: Any, results: Results) -> None:
    """What every codec loses at as many bytes as DANUQ sends at 4 bits."""
    errors = [last_round(found)["equal_bytes"]["4"]["errors"] for found in results.values()]
    codecs = sorted(errors[0], key=lambda codec: errors[0][codec])
    width = 0.8 / len(results)
    for number, (name, lost) in enumerate(zip(results, errors, strict=True)):
        places = np.arange(len(codecs)) + number * width
        axes.bar(places, [lost.get(codec, np.nan) for codec in codecs], width, label=name)
    axes.set_xticks(np.arange(len(codecs)) + 0.4 - width / 2, codecs, rotation=45)
    axes.set(yscale="log", ylabel="squared error / energy", title="at the bytes of 4-bit DANUQ")


def draw_kurtosis(axes: Any, results: Results) -> None:
    for name, found in results.items():
        rounds = found["rounds"]
        numbers = [int(number) for number in rounds]
        axes.plot(numbers, [kept["kurtosis"] for kept in rounds.values()], "o-", label=name)
    axes.axhline(3, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="round", ylabel="kurtosis, median over layers", yscale="log")
    whole_numbers(axes.xaxis)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


def last_round(found: Found) -> Found:
    """What an analysis of kept rounds says of the last."""
    last: Found = list(found["rounds"].values())[-1]
    return last


def draw_drift(figure: Any, results: Results) -> None:
    """Cosine and norm of clients against their mean, by round."""
    cosine, norm = figure.subplots(1, 2)
    for name, found in results.items():
        numbers = [int(number) for number in found["rounds"]]
        alls = [kept["all"] for kept in found["rounds"].values()]
        cosine.plot(numbers, [np.mean(each["cosine"]) for each in alls], "o-", label=name)
        norm.plot(numbers, [np.mean(each["norm"]) for each in alls], "o-", label=name)
    cosine.set(xlabel="round", ylabel="mean cosine to the mean update")
    norm.set(xlabel="round", ylabel="mean norm over the mean's")
    whole_numbers(cosine.xaxis)
    whole_numbers(norm.xaxis)
    cosine.legend(fontsize="small")


def draw_gradients(figure: Any, results: Results) -> None:
    """The shares along weight, ones and both, layer by layer."""
    parts = {"weight": "along the weight", "ones": "along ones", "removed": "along both"}
    for axes, (part, words) in zip(figure.subplots(1, 3), parts.items(), strict=True):
        for name, found in results.items():
            axes.plot(
                [np.mean(layer[part]) for layer in found["layers"].values()], "o-", label=name
            )
        axes.set(xlabel="convolution", ylabel=f"share of the squared gradient {words}")
        whole_numbers(axes.xaxis)
    figure.axes[0].legend(fontsize="small")


def draw_scales(figure: Any, results: Results) -> None:
    """The median ratio and the code's error, round by round."""
    ratio, error = figure.subplots(1, 2)
    for name, found in results.items():
        if not found["rounds"]:
            continue  # a run without shared scales
        numbers = [int(number) for number in found["rounds"]]
        rows = found["rounds"].values()
        ratio.plot(numbers, [row["median"] for row in rows], label=name)
        error.plot(numbers, [row["quantization_error"] for row in rows], label=name)
    ratio.set(xlabel="round", ylabel="local over shared scale, median")
    error.set(xlabel="round", ylabel="squared error of the code")
    for axes in (ratio, error):
        whole_numbers(axes.xaxis)
        if not axes.lines:
            axes.text(0.5, 0.5, "no shared scales", ha="center", transform=axes.transAxes)
    if ratio.lines:
        ratio.legend(fontsize="small")


PICTURES: dict[str, Draw] = {
    "hessian": draw_hessian,
    "landscape": draw_landscape,
    "updates": draw_updates,
    "drift": draw_drift,
    "gradients": draw_gradients,
    "scales": draw_scales,
}
