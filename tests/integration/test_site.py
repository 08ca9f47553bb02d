"""The site is built as `make docs` builds it, and looked at as a reader would who has no network."""

import importlib
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"https://squidfunk.github.io/mkdocs-material/"}  # who made the theme; nothing is fetched from there
HOMES = (
    "control",
    "conversion",
    "data",
    "deploy",
    "kernels",
    "models",
    "neurons",
    "recipes",
    "runs",
    "studies",
    "training",
)
ROOMS = ["sage_snn", *(f"sage_snn.{home}" for home in HOMES)]

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.anchors |= {told[name] for name in ("id", "name") if told.get(name)}
        if tag == "a" and told.get("href"):
            self.links.append(told["href"])
        elif tag in ("script", "img", "link", "iframe"):
            self.loads += [told[name] for name in ("src", "href") if told.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet, with which mkdocs counts no warnings and --strict means nothing.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_of_the_docs_is_on_the_site(site, pages):
    written = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert {path.relative_to(site) for path in pages} == {page.with_suffix(".html") for page in written}


def test_links_and_anchors_lead_somewhere(pages):
    checked = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.name} links to {link}, which is not on the site"
            if parts.fragment and target in pages:
                anchors = pages[target].anchors
                assert unquote(parts.fragment) in anchors, f"{path.name} links to {link}; there is no such anchor"
            checked += 1
    assert checked > 1000


def test_nothing_is_fetched_from_elsewhere(pages):
    assert {load for page in pages.values() for load in page.loads if urlsplit(load).netloc} == set()
    assert {link for page in pages.values() for link in page.links if "squidfunk" in link} == ELSEWHERE


def test_the_search_knows_what_is_written(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    told = " ".join(entry["text"] for entry in index["docs"])
    assert "warmup_steps" in told
    assert any(entry["location"].startswith("faq.html#") for entry in index["docs"])


def test_the_search_works_from_the_folder_alone(site):
    with runpy.run_path(str(ROOT / "benchmarks" / "screenshot.py"))["browser"]() as opened:
        opened.get((site / "tutorials" / "page.html").as_uri())
        opened.find_element(By.CSS_SELECTOR, "[data-md-component=search-query]").send_keys("warmup_steps")
        results = (By.CSS_SELECTOR, ".md-search-result__link")
        found = WebDriverWait(opened, 60).until(lambda page: page.find_elements(*results))
        assert all(link.get_attribute("href").startswith(site.as_uri()) for link in found)
        fetched = opened.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert {urlsplit(name).scheme for name in fetched} <= {"file", "data", "blob"}
        assert opened.get_log("browser") == []


def test_the_gain_by_a_compiler_that_is_told_is_that_of_the_tables():
    gains = []
    for file in (ROOT / "docs").glob("performance*.json"):
        rows = [
            row for row in json.loads(file.read_text(encoding="utf-8"))["rows"] if "training step" in row["measure"]
        ]
        seconds = {(row["contestant"], row["size"]): row["minimum"] for row in rows}
        ours = [size for contestant, size in seconds if contestant == "ours" and ("ours, torch twin", size) in seconds]
        gains += [seconds["ours, torch twin", size] / seconds["ours", size] for size in ours]
    told = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    assert f"a training step on a CPU is {min(gains):.1f} to {max(gains):.1f} times as fast" in told


def test_equations_are_drawn_by_the_browser_itself(site):
    page = (site / "equations.html").read_text(encoding="utf-8")
    assert page.count("<math") > 10
    assert "arithmatex" not in page
    assert r"\frac" not in re.sub(r"<annotation.*?</annotation>", "", page, flags=re.DOTALL)


@pytest.fixture(scope="module")
def named(site, pages):
    """Names in the reference: anchors, or words alone: a constant, or `spikformer`, hidden by the file of its class."""
    page = site / "reference.html"
    words = re.findall(r"<code>(\w+)(?:\(\.\.\.\))?</code>", page.read_text(encoding="utf-8"))
    return {anchor.rpartition(".")[2] for anchor in pages[page].anchors} | set(words)


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_in_the_reference(room, named):
    assert set(importlib.import_module(room).__all__) - {"SUFFIXES"} - named == set()


def test_every_name_that_the_docs_import_is_in_the_reference(named):
    written = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    imported = re.findall(r"^from (sage_snn[\w.]*) import ([^(#\n]+)$", written, re.MULTILINE)
    names = {(room, name.split(" as ")[0].strip()) for room, names in imported for name in names.split(",")}
    assert len(names) > 20
    things = {name: getattr(importlib.import_module(room), name) for room, name in names}
    assert {name for name, thing in things.items() if not inspect.ismodule(thing)} - named == set()


def test_losses_callbacks_and_signals_are_in_the_reference(named):
    assert {"CrossEntropy", "TET", "SumCrossEntropy", "PolicyCallback", "head_entropy"} <= named
