"""The page in a real browser: what it draws, what it answers to, and what it never asks for."""

import base64
import json
import re
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwsq.report.page import Followed, Server, render
from fedwsq.runs.reading import read_runs
from report.chromium import Browser, browser, require_browser
from report.made_up import make_findings, make_run, make_runs

pytestmark = pytest.mark.slow
MAIN = "accuracy-bytes"
EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_browser()
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder, rounds=40, seeds=2)
    return folder


@pytest.fixture(scope="module")
def address(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render(read_runs([runs])))
    return path.as_uri()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    require_browser()
    with browser() as found:
        yield found


@pytest.fixture
def page(window: Browser, address: str) -> Iterator[Browser]:
    """The page afresh, on a desk; at the end nobody has complained, nor asked anyone anything."""
    window.size(1280, 900)
    window.prefer("light")
    window.open(address)
    window.run("sessionStorage.clear()")
    window.open(address)
    yield window
    assert window.problems() == []
    assert window.requests() == []


def ranges(page: Browser, chart: str = MAIN) -> list[float]:
    return page.run(f"const {{x_range: x}} = figures.get('{chart}'); return [x.start, x.end]")


def point(page: Browser, across: float, down: float) -> dict[str, float]:
    """A place on the main chart, as shares of its width and height."""
    page.run("document.querySelector('#plot-accuracy-bytes').scrollIntoView({block: 'center'})")
    left, top, width, height = page.run(
        "const box = document.querySelector('#plot-accuracy-bytes').getBoundingClientRect();"
        "return [box.left, box.top, box.width, box.height]"
    )
    return {"x": left + across * width, "y": top + down * height}


def mouse(page: Browser, kind: str, place: dict[str, float], **more: object) -> None:
    page.ask("Input.dispatchMouseEvent", type=kind, **place, **more)


def test_every_chart_is_drawn(page):
    charts = page.run("return [...figures.keys()]")
    assert charts[0] == MAIN
    assert {"loss-round", "bits-round", "failures-round"} <= set(charts)
    shown = page.run("return document.querySelectorAll('figure:not([hidden]) .plot').length")
    assert shown == len(charts)
    assert min(inked(page, chart) for chart in charts) > 1000


def test_what_was_analysed_is_drawn(window, runs, tmp_path):
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    make_findings(copy / "fedavg-0")
    make_findings(copy / "fedws-0", shift=0.5)
    path = tmp_path / "page.html"
    path.write_text(render(read_runs([copy])))
    window.size(1280, 900)
    window.prefer("light")
    window.open(path.as_uri())
    assert inked(window, "landscape-1") > 10_000
    assert inked(window, "landscape-2") > 10_000
    assert inked(window, "kurtosis-round") > 1000
    tone = "return figures.get('landscape-1').right[0].major_label_text_color"
    light = window.run(tone)
    window.prefer("dark")
    window.wait(lambda: window.run(tone) != light)
    window.click("[data-table='landscape-1']")
    rows = window.run("return document.querySelectorAll('#table-landscape-1 tbody tr').length")
    assert rows == 5
    # A legend hides lines; a landscape belongs to no line and stays.
    window.click("#h-insights ~ .legend [data-group='1']")
    seen = "return figures.get('kurtosis-round').renderers.map((each) => each.visible)"
    assert False in window.run(seen)
    window.size(390, 844)
    assert window.run("return document.documentElement.scrollWidth") == 390
    assert window.problems() == []
    assert window.requests() == []


def inked(page: Browser, chart: str) -> int:
    """How many values of a chart's pixels are not 0; Bokeh's canvases are in shadows."""
    return page.run(
        """
        const below = (root) => [...root.querySelectorAll("*")]
          .flatMap((each) => [each, ...(each.shadowRoot ? below(each.shadowRoot) : [])]);
        return below(document.getElementById(`plot-${arguments[0]}`))
          .filter((each) => each.tagName === "CANVAS" && each.width)
          .map((each) => each.getContext("2d").getImageData(0, 0, each.width, each.height).data)
          .reduce((sum, data) => sum + data.filter((value) => value).length, 0);
        """,
        chart,
    )


def test_legends_hide_a_line_everywhere(page):
    shown = (
        "return [...figures.values()].flatMap((figure) => figure.renderers)"
        ".filter((each) => each.glyph.tags[0] === 1).map((each) => each.visible)"
    )
    assert all(page.run(shown))
    page.click(".legend [data-group='1']")
    assert not any(page.run(shown))
    buttons = "[...document.querySelectorAll(\"[data-group='1']\")]"
    pressed = f"return {buttons}.map((each) => each.ariaPressed)"
    assert page.run(pressed) == ["false", "false"]
    page.click(".legend [data-group='1']")
    assert all(page.run(shown))


def test_views_and_smoothing_are_switched(page):
    page.click("[data-view='accuracy-round']")
    page.wait(lambda: page.run("return !!figures.get('accuracy-round')?.x_range"))
    assert page.run("return document.querySelector('#view-accuracy-bytes').hidden")
    fields = "return figures.get('accuracy-round').renderers.map(({glyph}) => glyph.y?.field)"
    assert "accuracy" in page.run(fields)
    page.click("[data-smooth='yes']")
    assert "accuracy" not in page.run(fields)
    assert "smoothed" in page.run(fields)


def test_the_pointer_reads_the_nearest_point(page):
    hidden = "return document.querySelector('#readout').hidden"
    assert page.run(hidden)
    # Onto a point of the first line, wherever that is.
    x, y = page.run(
        f"""
        const figure = figures.get("{MAIN}");
        document.querySelector("#plot-{MAIN}").scrollIntoView({{ block: "center" }});
        const {{ frame }} = Bokeh.index.get_by_id(figure.id);
        const line = figure.renderers.find((each) => each.glyph.type === "Line");
        const {{ x, accuracy }} = line.data_source.data;
        const {{ left, top }} = document.querySelector("#plot-{MAIN}").getBoundingClientRect();
        const at = [frame.x_scale.compute(x[20]), frame.y_scale.compute(accuracy[20])];
        return [left + at[0], top + at[1]];
        """
    )
    mouse(page, "mouseMoved", {"x": x, "y": y})
    page.wait(lambda: not page.run(hidden))
    text = page.run("return document.querySelector('#readout').innerText")
    assert "2 seeds" in text
    assert "%" in text
    assert text.split()[-1] == "21"  # the round
    mouse(page, "mouseMoved", {"x": 5, "y": 5})
    page.wait(lambda: page.run(hidden))


def test_zoom_by_drag_buttons_and_keys(page):
    before = ranges(page)
    way = [point(page, share, share - 0.1) for share in (0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)]
    mouse(page, "mouseMoved", way[0])
    mouse(page, "mousePressed", way[0], button="left", buttons=1, clickCount=1)
    for place in way[1:]:
        time.sleep(0.05)  # as a hand would
        mouse(page, "mouseMoved", place, button="left", buttons=1)
    mouse(page, "mouseReleased", way[-1], button="left", clickCount=1)
    page.wait(lambda: ranges(page) != before)
    zoomed = ranges(page)
    assert before[0] < zoomed[0] < zoomed[1] < before[1]
    page.click(f"[data-of='{MAIN}'][data-zoom='all']")
    page.wait(lambda: ranges(page) == pytest.approx(before))

    page.run(f"document.querySelector(\"[data-keys='{MAIN}']\").focus()")
    page.driver.switch_to.active_element.send_keys("+")
    closer = ranges(page)
    assert before[0] < closer[0] < closer[1] < before[1]
    page.driver.switch_to.active_element.send_keys("0")
    page.wait(lambda: ranges(page) == pytest.approx(before))


def test_tables_say_the_same_as_charts(page):
    table = f"#table-{MAIN}"
    assert page.run(f"return document.querySelector('{table}').hidden")
    page.click(f"[data-table='{MAIN}']")
    rows = page.run(f"return document.querySelectorAll('{table} tbody tr').length")
    assert rows == 12
    text = page.run(f"return document.querySelector('{table}').innerText")
    assert "round 40" in text
    assert "MB" in text


def test_themes_follow_the_system_until_one_is_chosen(page):
    theme = "return document.documentElement.dataset.theme"
    tone = f"return figures.get('{MAIN}').below[0].major_label_text_color"
    assert page.run(theme) == "light"
    light = page.run(tone)
    page.prefer("dark")
    page.wait(lambda: page.run(theme) == "dark")
    assert page.run(tone) != light
    page.click("[data-theme-choice='light']")
    assert page.run(theme) == "light"
    assert page.run(tone) == light


def test_a_phone_needs_no_sideways_scrolling_and_may_scroll_over_charts(page, address):
    page.size(390, 844)
    page.open(address)
    assert page.run("return document.documentElement.scrollWidth") == 390
    active = "return figures.get('accuracy-bytes').toolbar.tools.map((tool) => tool.active)"
    assert not any(page.run(active))


def test_on_paper_it_is_light_and_without_buttons(page):
    page.prefer("dark")
    printed = page.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 40_000
    # Wide paper, so that charts and tables are as large as the words say.
    _, _, width, height = map(float, re.search(rb"/MediaBox\s*\[([^]]*)\]", pdf)[1].split())
    assert width > height
    page.ask("Emulation.setEmulatedMedia", media="print")
    shown = (
        "return [...document.querySelectorAll('.controls')]"
        ".filter((each) => getComputedStyle(each).display !== 'none').length"
    )
    assert page.run(shown) == 0
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("return document.documentElement.dataset.theme") == "light"
    assert page.run("return [...document.querySelectorAll('details')].every((each) => each.open)")
    page.ask("Emulation.setEmulatedMedia", media="")


def test_a_command_is_selected_where_a_page_may_not_copy_it(page):
    page.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.click(".run summary")
    page.click(".run [data-copy]")
    page.wait(lambda: page.run("return document.querySelector('[data-copy]').innerText") != "Copy")
    assert page.run("return getSelection().toString()").startswith("fedwsq run cifar10-resnet8")


def test_a_desk_shows_tables_whole_and_neighbours_level(page):
    cut_off = page.run(
        "return [...document.querySelectorAll('.scroll')]"
        ".filter((each) => each.scrollWidth > each.clientWidth).length"
    )
    assert cut_off == 0
    tops = page.run(
        "return [...document.querySelectorAll('.panels .plot')]"
        ".map((each) => each.getBoundingClientRect().top)"
    )
    assert tops[::2] == tops[1::2]


def test_the_keyboard_reaches_everything(page):
    unreachable = page.run(
        "return [...document.querySelectorAll('button, summary, .plot-frame, .scroll')]"
        ".filter((each) => each.tabIndex < 0).length"
    )
    assert unreachable == 0
    nameless = page.run(
        "return [...document.querySelectorAll('button')]"
        ".filter((each) => !(each.ariaLabel || each.textContent).trim()).length"
    )
    assert nameless == 0


def test_what_runs_say_does_nothing(window, runs, tmp_path):
    copy = Path(shutil.copytree(runs, tmp_path / "runs"))
    evil = copy / "x<img src=x onerror=alert(1)>"
    (copy / "fedavg-0").rename(evil)
    config = (evil / "config.toml").read_text().replace('name = "resnet8"', f'name = "{EVIL}"')
    (evil / "config.toml").write_text(config)
    rows = evil / "rounds.jsonl"
    first, *rest = rows.read_text().splitlines(keepends=True)
    row = {**json.loads(first), "failures": {EVIL: EVIL}}
    rows.write_text(json.dumps(row) + "\n" + "".join(rest))
    (evil / "error.txt").write_text(EVIL)
    path = tmp_path / "page.html"
    path.write_text(render(read_runs([copy])))
    window.ask("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => {said = 1}")
    window.open(path.as_uri())
    assert window.run("return typeof said") == "undefined"
    assert window.run("return document.querySelectorAll('img').length") == 0
    assert window.run("return document.body.innerText.includes('onerror=alert(1)')")
    assert window.problems() == []


def test_a_served_page_follows_its_runs_and_keeps_the_zoom(window, tmp_path):
    make_run(tmp_path / "runs" / "one", "fedavg", rounds=30, seed=0)
    rows = tmp_path / "runs" / "one" / "rounds.jsonl"
    whole = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join(whole[:10]))
    with Server(Followed([tmp_path / "runs"])) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            window.size(1280, 900)
            window.open(server.address)
            window.run(f"move('{MAIN}', 0, 0.5)")
            zoomed = ranges(window)
            rows.write_text("".join(whole))
            drawn = f"figures.get('{MAIN}')?.renderers[0].data_source.data.x.length"
            window.wait(lambda: window.run(f"return {drawn}") == 30)
            window.wait(
                lambda: window.run("return document.documentElement.dataset.drawn") == "yes"
            )
            assert ranges(window) == pytest.approx(zoomed)
            assert window.run("return document.querySelector('#live').textContent") == "following"
            assert window.problems() == []
        finally:
            server.shutdown()
            thread.join()


def test_twenty_runs_of_a_thousand_rounds(tmp_path):
    require_browser()
    make_runs(tmp_path / "runs", rounds=1000, seeds=4)
    before = resource.getrusage(resource.RUSAGE_SELF)
    page = render(read_runs([tmp_path / "runs"]))
    after = resource.getrusage(resource.RUSAGE_SELF)
    # Processor time: how busy the machine is otherwise is not the page's doing.
    assert after.ru_utime - before.ru_utime < 20
    assert len(page.encode()) < 5_000_000
    path = tmp_path / "page.html"
    path.write_text(page)
    # Processor time, the least of three: how busy the machine is otherwise is not the page's doing.
    longest = [longest_task(path) for _ in range(3)]
    assert min(longest) < 200, f"the longest tasks took {longest} ms"


def longest_task(path: Path) -> float:
    from selenium.common.exceptions import WebDriverException

    for _ in range(3):
        with browser(traced=True) as window:
            window.open(path.as_uri())
            try:
                return window.longest_task_ms()
            except WebDriverException:  # it waits 30 s for a trace, and no longer
                continue
    pytest.skip("the driver gave up three times waiting for a trace: the machine is too busy")
