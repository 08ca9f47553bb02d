"""What commands print: whole in eighty columns, and plain where no terminal is."""

import json
import re
import sys

import pytest

from sage_snn.cli import main
from sage_snn.recipes import load_recipe
from sage_snn.recipes.recipe import shipped_recipes
from sage_snn.screen import console, sheet
from sage_snn.studies.study import load_study, shipped_studies

ESCAPES = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """The lines of a command, in a terminal of so many columns or, with None, in a pipe."""
    monkeypatch.chdir(tmp_path)

    def lines(*args, columns):
        for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
            monkeypatch.setenv("FORCE_COLOR", "1")  # which makes rich see a terminal
        monkeypatch.setattr(sys, "argv", ["sage-snn", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        out = capsys.readouterr().out
        assert ("\x1b" in out) == (columns is not None)
        return ESCAPES.sub("", out).splitlines()

    return lines


@pytest.mark.parametrize("columns", [80, None], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    ("command", "names"),
    [(["recipes"], shipped_recipes()), (["study", "list"], shipped_studies())],
    ids=["recipes", "studies"],
)
def test_what_ships_is_a_whole_line_each_in_eighty_columns(printed, command, names, columns):
    lines = printed(*command, columns=columns)
    rows = lines[2 : 2 + len(names)]
    assert [row.split()[0] for row in rows] == sorted(names)
    assert max(len(row.rstrip()) for row in rows) <= 80
    assert not any("…" in row for row in rows)
    assert columns is None or max(len(line.rstrip()) for line in lines) <= columns


def test_the_list_tells_the_time_and_the_runs(printed):
    recipes = {line.split()[0]: line for line in printed("recipes", columns=80) if line.strip()}
    assert " 1 min " in recipes["digits"]
    assert " 1 h " in recipes["cifar10-small"]
    assert " a GPU " in recipes["imagenet200"]
    studies = {line.split()[0]: line for line in printed("study", "list", columns=80) if line.strip()}
    assert re.search(r" 15 +1 h 12 min ", studies["table1-small"])
    assert re.search(r" 150 +GPUs ", studies["timesteps"])


@pytest.mark.parametrize("columns", [60, 80, None])
def test_a_recipe_is_shown_to_the_last_letter(printed, columns):
    told = " ".join(" ".join(printed("recipes", "digits", columns=columns)).split())
    about = load_recipe("digits").about
    assert f"what: {about['what']}" in told
    assert f"measured: {about['measured']}" in told


def test_a_study_tells_what_it_asks_and_all_its_runs(printed):
    lines = printed("study", "list", "table1-small", columns=80)
    told = " ".join(" ".join(lines).split())
    study = load_study("table1-small")
    assert study.about["what"] in told
    assert "cost about 1 h 12 min of one CPU core" in told
    assert study.about["command"] in told
    assert all(sum(planned.key in line for line in lines) == 1 for planned in study.runs())
    assert max(len(line.rstrip()) for line in lines) <= 80


@pytest.mark.parametrize("columns", [80, None], ids=["terminal", "pipe"])
def test_the_state_of_every_run_is_a_line(printed, columns):
    lines = printed("study", "status", "table1-small", columns=columns)
    rows = [line for line in lines if re.search(r" waiting +0/5", line)]
    assert [row.split()[0] for row in rows] == [planned.key for planned in load_study("table1-small").runs()]


def test_all_layers_of_a_network_are_told_apart_in_eighty_columns(printed):
    names = json.loads("\n".join(printed("eval", "shipped:digits", "--json", columns=None)))["layers"]
    lines = printed("eval", "shipped:digits", columns=80)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert not any("…" in line for line in lines)
    first = lines.index(next(line for line in lines if line.startswith("stem.stages.0 ")))
    assert [line.split()[0] for line in lines[first : first + len(names)]] == list(names)


@pytest.mark.parametrize(
    "command", [["recipes"], ["recipes", "--diff", "cifar10", "imagenet200"], ["study", "status", "table1-small"]]
)
def test_nothing_is_drawn_that_a_log_cannot_show(printed, command):
    assert "\n".join(printed(*command, columns=None)).isascii()


def test_a_pipe_gets_whole_lines_and_a_terminal_folds_them(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = sheet("name", "words")
    table.add_row("one", "word " * 60)
    console().print(table)
    assert len(capsys.readouterr().out.splitlines()) == 3
    monkeypatch.setenv("COLUMNS", "80")
    console().print(table)
    assert len(capsys.readouterr().out.splitlines()) > 3
