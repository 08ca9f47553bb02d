"""The report as a reader meets it: opened from disk in headless Chromium."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from sage_snn.studies.paper.sections import MARKS
from sage_snn.studies.report import write_report
from sage_snn.studies.results import load_runs
from sage_snn.studies.study import parse_study

ROOT = Path(__file__).parents[2]


def _module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


screenshot = _module(ROOT / "benchmarks" / "screenshot.py")
synthetic = _module(ROOT / "tests" / "studies" / "synthetic.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    sizes = {"time_steps": (2, 4), "seeds": (1, 2, 3), "observed": (4,)}
    runs = load_runs(synthetic.write_study(root / "runs", **sizes, data="cifar10"))
    study = parse_study({"recipe": "cifar10", "axes": {"policy.kind": ["fixed", "sage"]}, "claims": "paper"})
    return write_report(runs, root, "Report <of> synthetic runs", study=study)


@pytest.fixture(scope="module")
def browser():
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.fail("this test needs a browser: apt-get install chromium chromium-driver")
    with screenshot.browser() as running:
        yield running


@pytest.fixture
def opened(browser, page):
    """The page, freshly opened and drawn, on a wide and light screen."""
    screenshot.resize(browser, 1280, 900)
    screenshot.prefer(browser, "light")
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(page.as_uri())
    screenshot.wait_until_drawn(browser)
    return browser


def test_it_opens_from_disk_without_an_error_and_without_a_network(opened):
    assert opened.get_log("browser") == []
    fetched = opened.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith(("file:", "data:", "blob:"))] == []
    assert opened.title == "Report <of> synthetic runs"


def test_every_figure_has_drawn(opened):
    script = """return [...document.querySelectorAll('figure')].map(figure => [figure.id,
        figure.querySelectorAll('svg.main-svg').length,
        figure.querySelectorAll('svg.main-svg .trace path, svg.main-svg .heatmaplayer image').length])"""
    drawn = opened.execute_script(script)
    assert len(drawn) >= 9
    for name, pictures, marks in drawn:
        assert pictures > 0, name
        assert marks > 0, name


def test_no_button_sends_data_away(opened):
    script = "return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"
    assert not [title for title in opened.execute_script(script) if "hare" in title or "loud" in title]


def _column(opened, place):
    rows = opened.find_elements(By.CSS_SELECTOR, f"#comparison table tbody tr td:nth-child({place})")
    return [cell.get_attribute("data-value") or cell.text for cell in rows[: len(rows) // 2]]  # the first of two tables


def _heading(opened, title):
    headings = opened.find_elements(By.CSS_SELECTOR, "#comparison table:first-of-type th")
    return next((i + 1, th) for i, th in enumerate(headings) if th.text.startswith(title))


def test_a_table_sorts_by_a_click_and_back(opened):
    place, heading = _heading(opened, "Mean")
    button = heading.find_element(By.TAG_NAME, "button")
    button.click()
    assert heading.get_attribute("aria-sort") == "ascending"
    values = [float(value) for value in _column(opened, place)]
    assert values == sorted(values)
    button.click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(value) for value in _column(opened, place)] == sorted(values, reverse=True)


def test_a_table_sorts_by_keyboard_and_empty_cells_stay_below(opened):
    place, heading = _heading(opened, "Difference")
    button = heading.find_element(By.TAG_NAME, "button")
    for key, order in ((Keys.ENTER, "ascending"), (Keys.SPACE, "descending")):
        button.send_keys(key)
        assert heading.get_attribute("aria-sort") == order
        values = _column(opened, place)
        assert values[-2:] == ["–", "–"]
        numbers = [float(value) for value in values[:-2]]
        assert numbers == sorted(numbers, reverse=order == "descending")
    others = opened.find_elements(By.CSS_SELECTOR, "#comparison table:first-of-type th[aria-sort=none]")
    assert len(others) == len(heading.find_elements(By.XPATH, "../th")) * 2 - 1  # both tables have headings


def test_the_page_follows_a_dark_setting_while_it_is_open(opened):
    def colours():
        script = """const text = document.querySelector('#accuracy .xtick text');
            return [getComputedStyle(document.body).backgroundColor, getComputedStyle(text).fill]"""
        return opened.execute_script(script)

    light = colours()
    screenshot.prefer(opened, "dark")
    opened.execute_async_script("setTimeout(arguments[0], 1500)")
    dark = colours()
    assert dark[0] == "rgb(20, 23, 26)"
    assert light[1] != dark[1] == "rgb(230, 232, 234)"
    assert opened.get_log("browser") == []


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_do_not_scroll_sideways(opened, width):
    screenshot.resize(opened, width, 800)
    opened.execute_async_script("setTimeout(arguments[0], 700)")
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width


def test_figures_zoom_by_keyboard(opened):
    plot = opened.find_element(By.CSS_SELECTOR, "#curves .plot")
    limits = "return arguments[0].layout.xaxis.range.slice()"
    whole = opened.execute_script(limits, plot)
    opened.execute_script("arguments[0].focus()", plot)
    opened.switch_to.active_element.send_keys("+")
    opened.execute_async_script("setTimeout(arguments[0], 300)")
    near = opened.execute_script(limits, plot)
    assert near[1] - near[0] == pytest.approx(0.8 * (whole[1] - whole[0]))
    opened.switch_to.active_element.send_keys("0")
    opened.execute_async_script("setTimeout(arguments[0], 300)")
    assert opened.execute_script(limits, plot) == pytest.approx(whole)


def test_a_figure_can_be_enlarged_and_closed_with_escape(opened):
    figure = opened.find_element(By.ID, "accuracy")
    button = figure.find_element(By.CSS_SELECTOR, "button.enlarge")
    opened.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    assert "large" in figure.get_attribute("class")
    assert button.get_attribute("aria-expanded") == "true"
    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert "large" not in (figure.get_attribute("class") or "")


def test_each_verdict_has_a_mark_and_a_colour_of_its_own(opened):
    script = """const part = document.querySelector('#claims .verdict');
        return arguments[0].map(mark => { part.className = `verdict ${mark}`;
            return [getComputedStyle(part, '::before').content, getComputedStyle(part).color]; })"""
    marks, colours = zip(*opened.execute_script(script, list(MARKS.values())), strict=True)
    assert "cannot tell" in MARKS
    assert len(set(marks)) == len(MARKS)
    assert len(set(colours)) == len(MARKS)


def test_claims_lead_to_their_figures(opened):
    links = opened.find_elements(By.CSS_SELECTOR, "#claims a")
    assert links
    for link in links:
        name = link.get_attribute("href").rpartition("#")[2]
        assert opened.find_element(By.ID, name).tag_name == "figure"
