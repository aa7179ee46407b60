"""Pictures of what was found, runs side by side; figures are matplotlib's, made by the caller."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from fedwsq.analysis.subject import Found

Results: TypeAlias = Mapping[str, Found]  # by run
Draw: TypeAlias = Callable[[Any, Results], None]
COORDINATES = ("raw", "effective", "relative")


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
    losses = [np.array(found["loss"]) for found in results.values()]
    low = min(float(loss.min()) for loss in losses)
    # Far out the loss grows without bound; the colours are for what is near.
    high = max(float(np.quantile(loss, 0.8)) for loss in losses)
    count = len(results)
    for index, (name, found) in enumerate(results.items(), 1):
        a, b = np.meshgrid(found["steps"], found["steps"], indexing="ij")
        loss = np.minimum(np.array(found["loss"]), high)
        above = figure.add_subplot(2, count, index, projection="3d")
        above.plot_surface(a, b, loss, cmap="viridis", vmin=low, vmax=high)
        above.set(title=name, zlim=(low, high))
        below = figure.add_subplot(2, count, count + index)
        drawn = below.contourf(a, b, loss, np.linspace(low, high, 20), cmap="viridis")
        below.set(xlabel="first direction", ylabel="second direction")
    figure.colorbar(drawn, ax=below, label="test loss")


def draw_updates(figure: Any, results: Results) -> None:
    """The last kept round of each run: its histogram and its Q-Q plot, all layers together."""
    histogram, quantiles = figure.subplots(1, 2)
    for name, found in results.items():
        last = list(found["rounds"].values())[-1]
        layers = last["layers"].values()
        edges = np.array(found["bins"])
        share = np.mean([layer["share"] for layer in layers], axis=0)
        label = f"{name}: kurtosis {last['kurtosis']:.2f}"
        histogram.stairs(share / np.diff(edges), edges, label=label)
        mean = np.mean([layer["quantiles"] for layer in layers], axis=0)
        quantiles.plot(found["normal_quantiles"], mean, ".", label=name)
    x = np.linspace(-4, 4, 200)
    histogram.plot(x, np.exp(-x * x / 2) / np.sqrt(2 * np.pi), "k--", linewidth=1, label="N(0, 1)")
    histogram.set(xlabel="update / std", ylabel="density", yscale="log", ylim=(1e-5, None))
    quantiles.plot([-3, 3], [-3, 3], "k--", linewidth=1)
    quantiles.set(xlabel="quantile of N(0, 1)", ylabel="quantile of updates")
    histogram.legend(fontsize="small")


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
    cosine.legend(fontsize="small")


def draw_gradients(figure: Any, results: Results) -> None:
    """The shares along weight and ones, layer by layer."""
    for axes, part in zip(figure.subplots(1, 2), ("weight", "ones"), strict=True):
        for name, found in results.items():
            axes.plot(
                [np.mean(layer[part]) for layer in found["layers"].values()], "o-", label=name
            )
        axes.set(xlabel="convolution", ylabel=f"share of the squared gradient along {part}")
    figure.axes[0].legend(fontsize="small")


def draw_scales(figure: Any, results: Results) -> None:
    """The median ratio and the code's error, round by round."""
    ratio, error = figure.subplots(1, 2)
    for name, found in results.items():
        numbers = [int(number) for number in found["rounds"]]
        rows = found["rounds"].values()
        ratio.plot(numbers, [row["median"] for row in rows], label=name)
        error.plot(numbers, [row["quantization_error"] for row in rows], label=name)
    ratio.set(xlabel="round", ylabel="local over shared scale, median")
    error.set(xlabel="round", ylabel="squared error of the code")
    ratio.legend(fontsize="small")


PICTURES: dict[str, Draw] = {
    "hessian": draw_hessian,
    "landscape": draw_landscape,
    "updates": draw_updates,
    "drift": draw_drift,
    "gradients": draw_gradients,
    "scales": draw_scales,
}
