"""Figures of runs: tidy data first, then plotly for the page and matplotlib for papers, from the same numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..comparison import plain_label
from ..results import RunResult, table
from .accuracy import accuracy_figures
from .blocks import block_figures, unread
from .figure import Figure, save
from .firing import firing_figures
from .overhead import overhead_figures
from .steps import steps_figures
from .style import label_order
from .temperature import temperature_figures
from .tidy import members

__all__ = ["Figure", "baseline_of", "figures_of", "save", "unread"]


def figures_of(
    runs: Sequence[RunResult], names: Mapping[str, str] | None = None, baseline: str | None = None
) -> list[Figure]:
    """Every figure for which these runs hold the data, in reading order.

    `names` maps the name of a run's folder to a label of its own; `baseline` is the label that others are paired with.
    """
    if not runs:
        return []
    rows = table(runs, names)
    listed = members(runs, rows)
    return [
        *accuracy_figures(listed, rows, baseline or baseline_of(rows)),
        *steps_figures(listed),
        *block_figures(listed),
        *firing_figures(listed),
        *temperature_figures(listed),
        *overhead_figures(listed),
    ]


def baseline_of(rows: pd.DataFrame) -> str:
    """The label, its setting left out, that others are compared with unless somebody says: fixed, or else the first."""
    return min({plain_label(row) for row in _records(rows)}, key=label_order)


def _records(rows: Any) -> list[dict[str, Any]]:
    return rows.to_dict("records")
