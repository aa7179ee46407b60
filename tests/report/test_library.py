"""The plotting library in parts is the whole one, or stays whole."""

import pytest

pytest.importorskip("bokeh")

from fedwsq.report.page.charts import bokeh
from fedwsq.report.page.library import PART_CHARACTERS, library_parts, split

LOADER = "'use strict';\n(function(modules, entry) {...})"


def bundle(*modules: str) -> str:
    return LOADER + "\n([\n" + ",\n".join(modules) + '\n], 0, {"main":0}, {});'


def test_all_of_the_library_is_there_in_small_parts():
    raw = bokeh().resources.Resources(mode="inline", components=["bokeh"]).js_raw
    parts = library_parts(bokeh())
    assert len(parts) > 8
    assert max(map(len, parts)) < 1.5 * PART_CHARACTERS
    rest = "".join(parts)
    for line in raw[0].splitlines():
        # But for the three lines around the list of modules, and the comma after a part's last.
        assert line.rstrip(",") in rest or line in ("([",) or line.startswith("], 0, {")
    assert parts[-1].endswith(raw[1])


def test_modules_run_after_those_they_need():
    first, loader, run, last = split(
        bundle("function _(e){e(2),e(1)}", "function _(t){t(2)}", "function _(n){}"), "after();"
    )
    assert first.count("function _(") == 3
    assert "libraryModules, 3, {" in loader
    assert "[2, 1, 0].forEach" in run
    assert last.endswith("Bokeh.register_plugin({}, 0);\nafter();")


@pytest.mark.parametrize(
    "whole",
    [
        bundle("function _(e){e(1)}", "function _(e){e(0)}"),
        "a library of another make",
        LOADER + "\n([\nfunction _(e){}",
    ],
    ids=["a circle", "another make", "no end"],
)
def test_what_is_not_as_we_know_it_stays_whole(whole):
    assert split(whole, "after();") == [whole + "\nafter();"]
