"""Whoever copies a command from the README or from the docs gets one that exists; and the README stays short."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from sage_snn.cli import app
from sage_snn.recipes import shipped_recipes
from sage_snn.studies import shipped_studies

ROOT = Path(__file__).parents[2]
SCREEN = 80  # lines: a large one
DOCS = sorted(page for page in (ROOT / "docs").rglob("*.md") if "runs" not in page.parts[len(ROOT.parts) :])
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|\s)(?:sage-snn|-m sage_snn)\s+(?=\S)")


def commands(page):
    """The words after `sage-snn` in fenced blocks; some lines have two commands, brackets hold what may be left out."""
    for block in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            for told in COMMAND.split(line.partition("#")[0])[1:]:
                yield shlex.split(re.sub(r"[\[\]]", "", told))


def parse(words):
    """Its parameters by name; an unknown command, option or choice, or a missing argument is an error."""
    command, *rest = typer.main.get_command(app), *words
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context(command.name, rest).params


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page):
    for words in commands(page):
        of_study = words[0] == "study"
        shipped = shipped_studies() if of_study else shipped_recipes()
        name = parse(words).get("name" if of_study else "recipe") or "NAME"
        assert name in shipped or name.isupper() or name.endswith(".yaml"), f"{page.name}: {words} names nothing"


def test_commands_are_found_where_they_stand():
    assert sum(len(list(commands(page))) for page in [ROOT / "README.md", *DOCS]) > 40


@pytest.mark.parametrize("words", ["trian digits", "train", "train digits --polcy sage", "export RUN --to gif"])
def test_what_is_none_is_refused(words):
    with pytest.raises(Exception, match=r"trian|Missing|polcy|gif"):
        parse(words.split())


def test_the_page_of_commands_has_every_command():
    told = {words[0] for words in commands(ROOT / "docs" / "commands.md")}
    assert told == set(typer.main.get_command(app).commands)


def test_every_extra_is_told_of_and_no_other():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs"}  # for those who work on the package
    start, readme = ((ROOT / page).read_text(encoding="utf-8") for page in ("docs/start.md", "README.md"))
    assert set(re.findall(r'pip install "sage-snn\[(\w+)\]"', start)) == extras
    [sentence] = re.findall(r"^Extras: (.*?)\. ", readme, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", sentence)) == extras


def test_the_readme_is_a_screen():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= SCREEN
