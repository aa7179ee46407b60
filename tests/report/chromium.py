"""A real Chromium without a window, and what it says of a page.

    python tests/report/chromium.py PAGE PICTURE [--width 1280] [--height 1000] [--dark]

takes a picture of the top of a page, as those in `docs` were taken.
"""

import argparse
import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PATIENCE_SECONDS = 120.0
TRACED = "toplevel,devtools.timeline"  # tasks, and the processor time that each took


def require_browser() -> None:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if BROWSER is None or DRIVER is None:
        pytest.skip("no browser: install chromium and chromium-driver to test the page in one")


class Browser:
    """One window on one page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.events: list[dict[str, Any]] = []

    def open(self, address: str) -> None:
        self.driver.get(address)
        self.wait(lambda: self.run("return document.documentElement.dataset.drawn === 'yes'"))

    def run(self, script: str, *values: object) -> Any:
        return self.driver.execute_script(script, *values)

    def ask(self, command: str, **values: object) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, values)

    def wait(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not true():
            assert time.monotonic() < end, f"waited {PATIENCE_SECONDS} s in vain"
            time.sleep(0.05)

    def size(self, width: int, height: int) -> None:
        phone = width < 500
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        self.ask("Emulation.setTouchEmulationEnabled", enabled=phone)

    def prefer(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def problems(self) -> list[str]:
        """What the console says that is not mere information."""
        log = self.driver.get_log("browser")
        return [entry["message"] for entry in log if entry["level"] in ("WARNING", "SEVERE")]

    def told(self, method: str) -> list[dict[str, Any]]:
        """All events of a kind since the window was opened."""
        for entry in self.driver.get_log("performance"):
            self.events.append(json.loads(entry["message"])["message"])
        return [event["params"] for event in self.events if event["method"] == method]

    def requests(self) -> list[str]:
        """Every address that was asked for, pages and data in the page itself left out."""
        asked = [event["request"]["url"] for event in self.told("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith(("file:", "data:", "blob:", "chrome:"))]

    def longest_task_ms(self) -> float:
        """Processor time of the longest task of the page: a busy machine does not count."""
        traced = self.told("Tracing.dataCollected")
        threads = [event for event in traced if event.get("name") == "thread_name"]
        main = {
            (event["pid"], event["tid"])
            for event in threads
            if event["args"]["name"] == "CrRendererMain"
        }
        tasks = [
            event["tdur"] / 1000
            for event in traced
            if event.get("name", "").endswith("RunTask")
            and "tdur" in event
            and (event["pid"], event["tid"]) in main
        ]
        return max(tasks)


@contextmanager
def browser(traced: bool = False) -> Iterator[Browser]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for flag in (*FLAGS, f"--user-data-dir={folder}", "--window-size=1280,900"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        if traced:
            options.add_experimental_option("perfLoggingPrefs", {"traceCategories": TRACED})
        driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


def screenshot(window: Browser, path: Path, height: int) -> None:
    """The top of the page."""
    width = window.run("return innerWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    found = window.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    path.write_bytes(base64.b64decode(found["data"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1000)
    parser.add_argument("--dark", action="store_true")
    args = parser.parse_args()
    with browser() as shown:
        shown.size(args.width, args.height)
        shown.prefer("dark" if args.dark else "light")
        shown.open(args.page.absolute().as_uri())
        screenshot(shown, args.picture, args.height)
