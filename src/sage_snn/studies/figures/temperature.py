"""The statistic at several temperatures: Gini impurity beside the dispersion of entropy."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# pandas types every selection as a union of table, column and cell, which none of this depends on.

import pandas as pd

from .figure import Figure
from .lines import Lines
from .tidy import Group, Member, block_name, name_of, thinned, typical

SHOWN = ("fixed", "sage")  # of many labels: the plain network, and the one that the statistic steers
TITLES = {"gini": "Gini impurity, mean of heads", "dispersion": "entropy dispersion"}


def temperature_figures(members: list[Member]) -> list[Figure]:
    """Gini beside dispersion, and dispersion alone, for labels whose runs observed them."""
    seen = [group for group in typical(members) if any(m.run.over_heads is not None for m in group.members)]
    seen = [group for group in seen if group.label in SHOWN] or seen[:1]
    made: list[Figure] = []
    for group in seen:
        data = _observed(group)
        if (data["measure"] == "gini").any():
            made.append(_gini(group, seen, data))
        made.append(_dispersion(group, seen, data[data["measure"] == "dispersion"]))
    return made


def _gini(group: Group, among: list[Group], data: pd.DataFrame) -> Figure:
    drawing = Lines(
        "step", "value", "temperature", "training step", "", column="block", row="measure", row_titles=TITLES
    )
    caption = (
        "Upper row: Gini impurity of the attention rows, mean of the heads, which is at most 1 - 1/N for N keys. "
        "Lower row: standard deviation over heads of the normalised entropy. " + group.seeds
    )
    title = f"Gini impurity beside entropy dispersion: {group.title}"
    return Figure(name_of("gini", group, among), title, caption, data, drawing)


def _dispersion(group: Group, among: list[Group], data: pd.DataFrame) -> Figure:
    drawing = Lines(
        "step", "value", "temperature", "training step", "entropy dispersion (log)", column="block", log_y=True
    )
    caption = "Standard deviation over heads of the normalised entropy, per block and temperature. " + group.seeds
    title = f"Entropy dispersion per temperature: {group.title}"
    return Figure(name_of("temperature", group, among), title, caption, data.reset_index(drop=True), drawing)


def _observed(group: Group) -> pd.DataFrame:
    parts = [rows for m in group.members if (rows := m.run.over_heads) is not None]
    values = [name for name in TITLES if any(name in part for part in parts)]
    data = thinned(parts, ["block", "temperature"], values)
    data["block"] = data["block"].map(block_name)
    data["temperature"] = data["temperature"].map(lambda value: f"temperature {value:g}")
    return data.sort_values("measure", key=lambda column: column.map(list(TITLES).index), kind="stable")
