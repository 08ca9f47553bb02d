"""Paired differences of all policies at a glance."""

from collections.abc import Sequence

import pandas as pd

from ..figures.dots import Dots
from ..figures.figure import Figure
from .entry import Entry


def policies_figure(entries: Sequence[Entry]) -> Figure | None:
    """A dot with its interval per policy, in the order of the table, and a panel per setting; None without a pair."""
    baseline = next((entry.name for entry in entries if entry.is_baseline), None)
    rows = [
        (title, entry.name, seed, value, one.seen.mean, one.seen.low, one.seen.high, one.is_apart)
        for title in dict.fromkeys(title for entry in entries for title in entry.differences)
        for entry in entries
        if (one := entry.differences.get(title)) is not None and one.seen.mean == one.seen.mean
        for seed, value in one.by_seed.items()
    ]
    if not rows:
        return None
    columns = ["setting", "policy", "seed", "value", "mean", "low", "high", "is_apart"]
    data, order = pd.DataFrame(rows, columns=columns), [entry.name for entry in entries if not entry.is_baseline]
    drawing = Dots("policy", "setting", "percentage points", tuple(order))
    caption = (
        f"Top-1 after the last epoch, paired with {baseline} by seed: its line is at zero. A small ring is a seed, a "
        "whisker the 95 % interval of the mean. A full dot is told from zero after Holm's correction, an empty one is "
        "not. From the highest mean over all settings to the lowest; all panels have one scale."
    )
    return Figure("policies-differences", f"Paired differences to {baseline}", caption, data, drawing)
