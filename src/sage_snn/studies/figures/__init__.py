"""Figures of runs: tidy data first, then plotly for the page and matplotlib for papers, from the same numbers."""

from collections.abc import Mapping, Sequence

from ..results import RunResult, table
from .accuracy import accuracy_figures
from .blocks import block_figures
from .figure import Figure, save
from .firing import firing_figures
from .overhead import overhead_figures
from .style import POLICIES, label_order
from .temperature import temperature_figures
from .tidy import members

__all__ = ["Figure", "baseline_of", "figures_of", "save"]


def figures_of(
    runs: Sequence[RunResult], names: Mapping[str, str] | None = None, baseline: str | None = None
) -> list[Figure]:
    """Every figure for which these runs hold the data, in reading order.

    `names` maps the name of a run's folder to a label of its own; `baseline` is the label that others are paired with.
    """
    if not runs:
        return []
    rows = table(runs, names)
    found = members(runs, rows)
    return [
        *accuracy_figures(found, rows, baseline or baseline_of(rows["label"].tolist())),
        *block_figures(found),
        *firing_figures(found),
        *temperature_figures(found),
        *overhead_figures(found),
    ]


def baseline_of(labels: Sequence[str]) -> str:
    """The label that others are compared with unless somebody says: fixed, or else the first."""
    return POLICIES[0] if POLICIES[0] in labels else min(labels, key=label_order)
