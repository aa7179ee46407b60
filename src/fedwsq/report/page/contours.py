"""Landscapes as contours, drawn by Bokeh."""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedwsq.report.page.charts import Axis, blank, bokeh
from fedwsq.report.page.findings import Landscape

Losses = npt.NDArray[np.float64]
BANDS = 14  # between the lowest and the highest loss that are drawn
NEAR = 0.8  # share of a landscape that colours are for: far out the loss grows without bound
ALONG = Axis("first", "first direction, in lengths of filters", "0.[00]")
ACROSS = Axis("second", "second direction", "0.[00]")
EDGE = "#ffffff"  # between bands; seen on all of their colours
EDGE_ALPHA = 0.35


def losses(landscape: Landscape) -> Losses:
    """[first direction, second direction]; nan where the loss is not finite."""
    return np.array(landscape.loss, np.float64)


def loss_levels(landscapes: Sequence[Landscape]) -> Losses | None:
    """The same for all that are compared; None where there is no difference to draw."""
    if not landscapes:
        return None
    found = [losses(each) for each in landscapes]
    low = min(float(np.nanmin(loss)) for loss in found)
    high = max(float(np.nanquantile(loss, NEAR)) for loss in found)
    return np.linspace(low, high, BANDS + 1) if high > low else None


def contour_json(landscape: Landscape, levels: Losses, height: int) -> str:
    """A landscape as JSON for `Bokeh.embed.embed_item`."""
    library = bokeh()
    from bokeh.palettes import Viridis256, interp_palette

    figure = blank(library, ALONG, ACROSS, height)
    figure.ygrid.visible = False
    drawn = figure.contour(
        landscape.steps,
        landscape.steps,
        # Bokeh has rows along y.
        np.minimum(losses(landscape), levels[-1]).T,
        levels,
        fill_color=interp_palette(Viridis256, BANDS),
        line_color=EDGE,
        line_alpha=EDGE_ALPHA,
    )
    bar = drawn.construct_color_bar(
        title="loss",
        background_fill_color=None,
        title_text_font_style="normal",
        major_label_text_font="system-ui",
        formatter=library.models.NumeralTickFormatter(format="0.[00]"),
    )
    bar.ticker.ticks = levels[:: BANDS // 2].tolist()  # all of them have no room
    figure.add_layout(bar, "right")
    return json.dumps(library.embed.json_item(figure))
