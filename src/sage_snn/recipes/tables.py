"""Recipes on the screen."""

import os
from pathlib import Path

import yaml
from rich.syntax import Syntax
from rich.table import Column

from ..screen import cell, console, sheet, shown
from .fields import RecipeError
from .recipe import Recipe, differences, load_recipe, load_written_recipe, shipped_recipes


def print_recipes() -> None:
    """A line per shipped recipe."""
    line = {"no_wrap": True, "overflow": "ellipsis"}
    table = sheet(
        Column("recipe", no_wrap=True), Column("about", justify="right", no_wrap=True), Column("what", **line)
    )
    for name in shipped_recipes():
        about = load_recipe(name).about
        table.add_row(name, _time(about.get("minutes")), str(about.get("brief", about.get("what", "-"))))
    console().print(table)
    told = "`sage-snn recipes RECIPE` shows its cost, reported and measured accuracy, and every field."
    console().print("", f"{told} Times are those of two CPU cores.", sep="\n", highlight=False)


def _time(minutes: float | None) -> str:
    """On a CPU; without it a recipe asks for more."""
    if minutes is None:
        return "a GPU"
    return f"{minutes:g} min" if minutes < 60 else f"{minutes / 60:g} h"


def print_recipe(name: str) -> None:
    """One recipe with every field, defaults filled in."""
    fields = find_recipe(name).all_fields()
    screen = console()
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=min(110, screen.width - 12))
    if screen.is_terminal:
        screen.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        print(text, end="")


def print_difference(a: str, b: str) -> None:
    """The fields in which two recipes or runs differ."""
    rows = differences(find_recipe(a), find_recipe(b))
    if not rows:
        console().print(shown(f"{a} and {b} train the same thing"), markup=False)
        return
    table = sheet("field", Column(cell(a)), Column(cell(b)))
    for row in rows:
        table.add_row(*map(cell, row))
    console().print(table)


def find_recipe(name: str) -> Recipe:
    """Of a shipped name, a YAML file or a run's folder."""
    if not os.path.isdir(name):  # which says no of a name that is too long
        return load_recipe(name)
    written = Path(name) / "recipe.yaml"
    if not written.is_file():
        raise RecipeError(f"{name} is a folder without a recipe.yaml; give a run's folder")
    return load_written_recipe(written)
