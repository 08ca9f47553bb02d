"""What the findings rest on: figures, runs, recipes, machines."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from ...recipes.fields import flat
from ..figures import Figure
from ..labels import RECIPE
from ..results import RunResult, field_columns
from .document import Section, embedded, section
from .markup import Column, Markup, details, number, table, tag

FEW = 60  # rows of numbers that are shown below a figure; more are in its CSV
KEYS = "Focus a figure and press + or − to zoom, the arrow keys to move and 0 to see all; or drag, and double-click."


def figure_section(figures: Sequence[Figure], left_out: str = "") -> Section:
    """Every figure with its words, its numbers and its files; `left_out` tells what none of them shows."""
    lacking = tag("p", left_out, class_="note") if left_out else None
    if not figures:
        return section("figures", "Figures", tag("p", "These runs hold no data for a figure."), lacking)
    without = tag("p", "Figures are drawn by a script; their pictures are in the folder figures beside this page.")
    parts = (figure_part(figure) for figure in figures)
    keys = tag("p", KEYS, class_="note")
    return section("figures", "Figures", keys, lacking, tag("noscript", without), *parts)


def figure_part(figure: Figure) -> Markup:
    """One figure: an empty element, and the data that the script draws in it."""
    spec = json.loads(figure.plotly().to_json())
    spec["layout"].pop("template", None)  # the page has colours of its own
    plot = tag(
        "div",
        class_="plot",
        tabindex="0",
        role="img",
        aria_label=f"{figure.title}. {figure.caption}",
        style=f"min-width:{figure.min_width}px;min-height:{spec['layout'].get('height', 380)}px",
    )
    files = (tag("a", kind.upper(), href=f"figures/{figure.name}.{kind}") for kind in ("png", "pdf", "csv"))
    enlarge = tag("button", "Enlarge", type="button", class_="enlarge", aria_expanded="false")
    return tag(
        "figure",
        tag("h3", figure.title),
        tag("div", plot, class_="frame"),
        tag("figcaption", figure.caption),
        tag("div", enlarge, *files, _numbers(figure.shown), class_="tools"),
        embedded({"data": spec["data"], "layout": spec["layout"]}),
        id=figure.name,
    )


def runs_section(rows: pd.DataFrame, who: str = "Policy") -> Section:
    """A row per run; fields in which recipes differ have a column each; `who` heads the labels."""
    columns = [
        Column("label", who),
        Column("data", "Data"),
        Column("time_steps", "T", "d"),
        Column("seed", "Seed", "d"),
        Column("last_top1", "Last top-1 (%)", ".2f"),
        Column("best_top1", "Best top-1 (%)", ".2f"),
        Column("seconds", "Seconds", ",.0f", "of training, without evaluation"),
        Column("images_per_second", "Images/s", ",.0f"),
        Column("peak_memory_mb", "Memory (MB)", ",.0f", "peak of the process"),
        Column("parameters", "Parameters", ",d"),
        *(Column(name, name.removeprefix(RECIPE)) for name in field_columns(rows)),
        Column("path", "Folder"),
    ]
    listed = [row | {"path": tag("span", row["folder"], class_="path")} for row in rows.to_dict("records")]
    return section("runs", "Runs", table(listed, columns, f"All {len(rows)} runs"))


def recipe_section(runs: Sequence[RunResult], labels: Sequence[str]) -> Section:
    """What the recipes share, one recipe of each label, and the machines and versions, folded away."""
    recipes = [run.recipe.identity() for run in runs]
    shared = {key: value for key, value in recipes[0].items() if all(other.get(key) == value for other in recipes)}
    first: dict[str, RunResult] = {}
    for run, label in zip(runs, labels, strict=True):
        first.setdefault(label, run)
    examples = (
        details(f"Recipe: {label}", tag("p", f"As it was trained with seed {run.recipe.seed}."), tag("pre", _yaml(run)))
        for label, run in first.items()
    )
    return section(
        "recipes",
        "Recipes and environment",
        details(
            f"Settings that all runs share ({len(shared)})", _pairs({key: [value] for key, value in shared.items()})
        ),
        *examples,
        details("Environment, as applied", _pairs(_facts(runs), len(runs))),
    )


def facts_list(facts: Mapping[str, str]) -> Markup:
    """A few numbers at a glance."""
    cells = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items())
    return tag("dl", *cells, class_="facts")


def _numbers(data: pd.DataFrame) -> Markup | None:
    if len(data) > FEW:
        return None
    forms = {name: None if data[name].dtype == object else _form(data[name]) for name in data.columns}
    columns = [Column(str(name), str(name).replace("_", " "), form) for name, form in forms.items()]
    return details("Numbers", table(data.to_dict("records"), columns, "Numbers of the figure"))


def _form(column: Any) -> str | None:
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return None
    return "d" if pd.api.types.is_integer_dtype(column) else ".5g"


def _facts(runs: Sequence[RunResult]) -> dict[str, list[Any]]:
    """Fact -> the value in each run."""
    applied = [{name.replace(".", " "): value for name, value in flat(run.applied)} for run in runs]
    names = dict.fromkeys(name for facts in applied for name in facts if name != "in short")
    return {name: [facts.get(name) for facts in applied] for name in names}


def _pairs(values: Mapping[str, list[Any]], runs: int = 1) -> Markup:
    """A row per name; where runs differ every value stands with the number of its runs."""
    rows = (tag("tr", tag("th", name, scope="row"), tag("td", _counted(given, runs))) for name, given in values.items())
    return tag("div", tag("table", tag("tbody", *rows), class_="plain"), class_="scroll")


def _counted(values: list[Any], runs: int) -> Markup | str:
    counts: dict[str, int] = {}
    for value in values:
        counts[_written(value)] = counts.get(_written(value), 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    return tag("ul", *(tag("li", f"{value} ({number(count, 'd')} of {runs} runs)") for value, count in counts.items()))


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "; ".join(str(part) for part in value) or "none"
    return "none" if value is None else str(value)


def _yaml(run: RunResult) -> str:
    fields = run.recipe.model_dump(mode="json", exclude={"about"})
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100)
