"""Interactive charts, drawn by Bokeh: what it takes to draw them later, in a browser."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedwsq.core.errors import ConfigError
from fedwsq.report.curves import Columns, Curve, curve
from fedwsq.report.looks import Look

POINTS = 40_000  # on one chart; more are not drawn faster than 200 ms
LEAST_POINTS = 60  # of a line, on charts with very many of them
MOST_POINTS = 400
BAND_ALPHA = 0.16
MARK = 7  # pixels
NARROW = 30  # from the first byte to the last
MANTISSAS = (1, 1.5, 2, 3, 4, 5, 7)


class Axis(NamedTuple):
    """What a chart is drawn against, or what it draws."""

    column: str
    label: str
    format: str = "0,0.[000]"  # of numbers, as Bokeh has it
    unit: float = 1.0  # a value is divided by it
    logarithmic: bool = False
    whole: bool = False  # nothing has half of one
    marked: bool = False  # points are few, and each has a mark

    @property
    def percent(self) -> bool:
        return self.format.endswith("%")


@dataclass(frozen=True)
class Line:
    """One group on every chart: the columns of its runs."""

    number: int
    label: str
    look: Look
    runs: tuple[Columns, ...]


def bokeh() -> Any:
    """The library, or an error that says how to get it."""
    try:
        import bokeh.embed
        import bokeh.models
        import bokeh.plotting
        import bokeh.resources
    except ImportError:
        raise ConfigError("fedwsq report needs an extra: pip install 'fedwsq[report]'") from None
    return bokeh


def points_each(lines: Sequence[Line]) -> int:
    """How many points a line may have, so that all of them are drawn at once."""
    return max(LEAST_POINTS, min(MOST_POINTS, POINTS // max(1, len(lines))))


def chart_json(lines: Sequence[Line], x: Axis, y: Axis, height: int) -> str:
    """A chart as JSON for `Bokeh.embed.embed_item`."""
    library = bokeh()
    figure = blank(library, x, y, height)
    # Bands first: lines lie over them.
    drawn = [(line, _source(library, line, x, y, points_each(lines))) for line in lines]
    if x.logarithmic:
        ends = [value for _, source in drawn for value in source.data["x"][[0, -1]]]
        _mark_narrow(library, figure, min(ends), max(ends))
    for line, source in drawn:
        _band(figure, line, y, source)
    for line, source in drawn:
        _line(figure, line, y, source)
    return json.dumps(library.embed.json_item(figure))


def blank(library: Any, x: Axis, y: Axis, height: int) -> Any:
    models = library.models
    figure = library.plotting.figure(
        height=height,
        sizing_mode="stretch_width",
        x_axis_type="log" if x.logarithmic else "linear",
        toolbar_location=None,
        tools=[models.BoxZoomTool(), models.ResetTool()],
        x_axis_label=x.label,
        y_axis_label=y.label,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=16,
    )
    for axis, of in ((figure.xaxis[0], x), (figure.yaxis[0], y)):
        axis.formatter = models.NumeralTickFormatter(format=of.format)
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = "13px"
        axis.major_label_text_font_size = "13px"
        axis.minor_tick_out = 0
        axis.axis_label_text_font = "system-ui"
        axis.major_label_text_font = "system-ui"
        if of.whole:
            axis.ticker = models.AdaptiveTicker(min_interval=1)
    if x.logarithmic:
        figure.xaxis.minor_tick_out = 4
    figure.xgrid.visible = False
    return figure


def _mark_narrow(library: Any, figure: Any, low: float, high: float) -> None:
    """Marks for a logarithmic axis of little more than a decade, where Bokeh sets too few."""
    if low <= 0 or high / low > NARROW:
        return
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [mantissa * 10.0**decade for decade in decades for mantissa in MANTISSAS]
    figure.xaxis.ticker = library.models.FixedTicker(ticks=marks)


def _source(library: Any, line: Line, x: Axis, y: Axis, most: int) -> Any:
    """The columns of one line. Accuracy has its moving average beside it, for the switch."""
    found = curve(line.runs, x.column, y.column).thinned(most)
    data = _columns(found, x, y.column)
    if y.column == "accuracy":
        average = curve(line.runs, x.column, "smoothed").thinned(most)
        if len(average) == len(found):
            data |= _columns(average, x, "smoothed")
    return library.models.ColumnDataSource(data)


def _columns(found: Curve, x: Axis, name: str) -> dict[str, Any]:
    values = {
        "x": found.x / x.unit,
        "round": found.rounds,
        "seeds": found.seeds,
        name: found.mean,
        f"{name}_low": found.low,
        f"{name}_high": found.high,
    }
    # Four bytes a number are as many as a screen can show.
    return {key: each.astype(np.float32) for key, each in values.items()}


def _band(figure: Any, line: Line, y: Axis, source: Any) -> None:
    figure.varea(
        "x",
        f"{y.column}_low",
        f"{y.column}_high",
        source=source,
        fill_color=line.look.colour,
        fill_alpha=BAND_ALPHA,
        tags=_tags(line, y),
    )


def _line(figure: Any, line: Line, y: Axis, source: Any) -> None:
    figure.line(
        "x",
        y.column,
        source=source,
        line_color=line.look.colour,
        line_width=2,
        line_dash=list(line.look.dash),
        line_join="round",
        tags=_tags(line, y),
    )
    if y.marked:
        figure.scatter(
            "x",
            y.column,
            source=source,
            size=MARK,
            fill_color=line.look.colour,
            line_color=None,
            tags=_tags(line, y),
        )


def _tags(line: Line, y: Axis) -> list[object]:
    """By which the page's script finds what to hide, to repaint and to smooth."""
    return [line.number, line.look.number, y.column]
