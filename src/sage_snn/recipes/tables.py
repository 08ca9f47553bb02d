"""Recipes on the screen."""

import os
from pathlib import Path

import yaml
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Column, Table

from ..screen import cell, shown
from .fields import RecipeError
from .recipe import Recipe, differences, load_recipe, load_written_recipe, shipped_recipes


def print_recipes() -> None:
    """A row per shipped recipe."""
    table = Table(
        Column("recipe", no_wrap=True),
        "what",
        "cost",
        "reported top-1 %",
        "measured top-1 %",
        title="sage-snn train RECIPE",
    )
    for name in shipped_recipes():
        about = load_recipe(name).about
        table.add_row(name, *(str(about.get(key, "-")) for key in ("what", "cost", "reported", "measured")))
    Console().print(table)


def print_recipe(name: str) -> None:
    """One recipe with every field, defaults filled in."""
    fields = find_recipe(name).all_fields()
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=110)
    Console().print(Syntax(text, "yaml", background_color="default"))


def print_difference(a: str, b: str) -> None:
    """The fields in which two recipes or runs differ."""
    rows = differences(find_recipe(a), find_recipe(b))
    if not rows:
        Console().print(shown(f"{a} and {b} train the same thing"), markup=False)
        return
    table = Table("field", Column(cell(a)), Column(cell(b)))
    for row in rows:
        table.add_row(*map(cell, row))
    Console().print(table)


def find_recipe(name: str) -> Recipe:
    """Of a shipped name, a YAML file or a run's folder."""
    if not os.path.isdir(name):  # which says no of a name that is too long
        return load_recipe(name)
    written = Path(name) / "recipe.yaml"
    if not written.is_file():
        raise RecipeError(f"{name} is a folder without a recipe.yaml; give a run's folder")
    return load_written_recipe(written)
