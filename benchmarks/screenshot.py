"""Photograph a report: python benchmarks/screenshot.py RUN_OR_HTML OUT.png [--dark] [--full] [--at figures].

Given a folder, its report.html is taken; if there is none, one is written from the folder as a run. Needs Debian's
chromium and chromium-driver (`apt-get install chromium chromium-driver`) and selenium.
"""

import argparse
import base64
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
MISSING = "no chromium or chromedriver; apt-get install chromium chromium-driver"


@contextmanager
def browser(width: int = 1280, height: int = 1600) -> Iterator[Any]:
    """A headless Chromium with a profile of its own, and a log of its console."""
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise RuntimeError(MISSING)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield running
        finally:
            running.quit()


def resize(running: Any, width: int, height: int) -> None:
    """The viewport itself: Chromium's window refuses to be as narrow as a telephone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    running.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(running: Any, scheme: str) -> None:
    """Light or dark, as a reader's system would ask for."""
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    running.execute_cdp_cmd("Emulation.setEmulatedMedia", features)


def wait_until_drawn(running: Any, seconds: float = 60) -> None:
    """Return when every figure has been drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    script = "return [...document.querySelectorAll('figure .plot')].every(p => p.dataset.drawn === 'true')"
    WebDriverWait(running, seconds).until(lambda page: page.execute_script(script))


def shoot(running: Any, out: Path, *, full: bool = False) -> None:
    """Write what is seen, or the whole page, as PNG."""
    options = {"format": "png", "captureBeyondViewport": full}
    if full:
        size = running.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(base64.b64decode(running.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def page_of(source: Path) -> Path:
    """The page itself, the one in the folder, or one made of the run in it."""
    if source.is_file():
        return source
    if (source / "report.html").is_file():
        return source / "report.html"
    from sage_snn.studies.report import write_report
    from sage_snn.studies.results import load_runs

    return write_report(load_runs([source]), source, source.name)


def main() -> None:
    parser = argparse.ArgumentParser(description="photograph a report")
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--full", action="store_true", help="the whole page, however long")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1600)
    parser.add_argument("--at", help="anchor to scroll to, such as figures")
    asked = parser.parse_args()
    try:
        with browser(asked.width, asked.height) as running:
            resize(running, asked.width, asked.height)
            prefer(running, "dark" if asked.dark else "light")
            running.get(page_of(asked.source).resolve().as_uri() + (f"#{asked.at}" if asked.at else ""))
            wait_until_drawn(running)
            if asked.at:
                running.execute_script("document.getElementById(arguments[0]).scrollIntoView()", asked.at)
            shoot(running, asked.out, full=asked.full)
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
