import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from sage_snn.recipes import load_recipe
from sage_snn.studies.study import parse_study

ROOT = Path(__file__).parents[2]
DOCS = sorted(page for page in (ROOT / "docs").rglob("*.md") if "runs" not in page.parts[len(ROOT.parts) :])
PAGES = [ROOT / "README.md", *DOCS]
TEXTS = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHOICES = 20

# Lightning's own hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
]


def blocks(page):
    """(line number, words after the language, code) of every Python block."""
    text = page.read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        if fence[1] == "python":
            yield text[: fence.start()].count("\n") + 2, fence[2].split(), fence[3]


def prose(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def slug(heading):
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page):
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": page.stem}
    for line, words, code in blocks(page):
        # Blank lines in front make a traceback name the page's own line.
        compiled = compile("\n" * (line - 1) + code, str(page), "exec")
        if "no-run" not in words:
            exec(compiled, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_only_known_words_stand_on_a_fence(page):
    assert {word for _, words, _ in blocks(page) for word in words} <= {"no-run"}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page):
    for path, name in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), f"{page.name} names {path}, which does not exist"
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not name or name in defined, f"{page.name} names {path}::{name}, which does not exist"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        assert to.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and to.suffix == ".md":
            assert anchor in anchors(to), f"{page.name} links to {target}, but {to.name} has no such heading"


def test_each_of_the_twenty_choices_has_a_heading():
    numbers = re.findall(r"^## (\d+)\. \S", prose(ROOT / "docs" / "decisions.md"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, CHOICES + 1))


def test_each_step_of_the_method_has_a_heading_and_a_test():
    sections = re.split(r"^## ", prose(ROOT / "docs" / "equations.md"), flags=re.MULTILINE)[1:]
    steps = [section for section in sections if re.match(r"\d+\. ", section)]
    assert [int(section.partition(".")[0]) for section in steps] == list(range(1, 11))
    assert all("`tests/" in section and "::test_" in section for section in steps)


def test_each_of_the_twenty_choices_is_marked_in_the_code():
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert {int(number) for number in re.findall(r"Choice: decision (\d+)", code)} == set(range(1, CHOICES + 1))


def section(page, heading):
    return prose(page).partition(f"## {heading}")[2].partition("## ")[0]


def rooms():
    """Top-level modules and packages."""
    found = [path for path in (ROOT / "src" / "sage_snn").iterdir() if path.suffix == ".py" or path.is_dir()]
    return {path.stem for path in found if not path.name.startswith("_")}


def test_the_layout_has_every_file_that_there_is_and_no_other():
    cells = re.findall(r"^\| (`[^|]+) \|", section(ROOT / "CONTRIBUTING.md", "Layout"), re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([\w/.]+)`", cell)]
    assert [name for name in names if not (ROOT / "src" / "sage_snn" / name).exists()] == []
    assert rooms() - {name.removesuffix(".py").strip("/") for name in names} == set()


def test_the_import_contract_is_told_as_it_is_checked():
    chain = re.search(r"^`([^`]*←[^`]*)`$", section(ROOT / "CONTRIBUTING.md", "Import contract"), re.MULTILINE)
    told = [set(re.findall(r"\w+", layer)) for layer in reversed(chain[1].split("←"))]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert told == [set(re.findall(r"\w+", layer)) for layer in contracts[0]["layers"]]
    assert set().union(*told) == rooms()


def test_the_studies_of_ones_own_can_be_run():
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    own, grid, recipe, confirmation = map(yaml.safe_load, blocks)
    assert parse_study({"recipe": "cifar10-study"} | grid).count() == 4
    assert (load_recipe(recipe).model.depth, load_recipe(recipe).model.dim) == (2, 384)
    assert len(parse_study(confirmation).runs()) == 2 * 5
    planned = parse_study({"name": "mine"} | own).runs()
    assert len(planned) == 3 * 2 * 5
    assert planned[0].label == "fixed lr=0.001"


def test_the_study_of_the_first_five_minutes_has_the_runs_that_are_told():
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    [study] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(parse_study({"name": "two"} | yaml.safe_load(study)).runs()) == 6
    assert "trains six networks" in text
