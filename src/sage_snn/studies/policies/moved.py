"""What a policy moved over training, from the values that its runs recorded."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..results import ResultError, RunResult

VALUES = {"slope": "slope", "threshold": "threshold", "time_constant": "time constant"}  # column -> in words


def what_moved(runs: Iterable[RunResult]) -> str:
    """`slope 3.56 to 4.44, end 4.02`, over all blocks, steps and runs; its value where it never moves."""
    recorded = [rows for run in runs if not (rows := _signals(run)).empty]
    told = [_told(words, [rows for rows in recorded if column in rows], column) for column, words in VALUES.items()]
    return "; ".join(filter(None, told)) or "not recorded"


def _told(words: str, tables: Sequence[pd.DataFrame], column: str) -> str:
    values = [_numbers(rows[column]) for rows in tables]
    values = [part for part in values if len(part)]
    if not values:
        return ""
    low, high = min(part.min() for part in values), max(part.max() for part in values)
    if low == high:
        return f"{words} {low:.4g}"
    last = [_numbers(rows.loc[rows["step"] == rows["step"].max(), column]) for rows in tables]
    end = np.concatenate(last).mean()
    return f"{words} {low:.2f} to {high:.2f}, end {end:.2f}"


def _numbers(column: Any) -> np.ndarray:
    """All values of a column, one or several a row; without those that are missing."""
    values = [np.ravel(np.asarray(value, dtype=np.float64)) for value in column if value is not None]
    flat = np.concatenate(values) if values else np.empty(0)
    return flat[~np.isnan(flat)]


def _signals(run: RunResult) -> pd.DataFrame:
    try:
        return run.signals()
    except ResultError:
        return pd.DataFrame()
