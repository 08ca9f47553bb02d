"""What a policy costs: time of a training step."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# pandas types every selection as a union of table, column and cell, which none of this depends on.

import numpy as np
import pandas as pd

from .bars import Bars
from .figure import Figure
from .tidy import Member, groups, interval


def overhead_figures(members: list[Member]) -> list[Figure]:
    """Milliseconds of a training step per policy, if epochs were timed."""
    parts: list[pd.DataFrame] = []
    for group in groups(members):
        times = [(m.seed, 1000 * m.run.recipe.batch_size / m.run.images_per_second) for m in group.members]
        times = [(seed, value) for seed, value in times if np.isfinite(value)]
        mean, low, high = interval([value for _, value in times])
        part = pd.DataFrame(times, columns=["seed", "value"])
        names = {"data": group.data, "time_steps": group.time_steps, "label": group.label}
        parts.append(part.assign(**names, mean=mean, low=low, high=high))
    data = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if data.empty or data["label"].nunique() < 2:
        return []
    data = data.sort_values(["data", "time_steps"], kind="stable")
    data = data[["data", "time_steps", "label", "seed", "value", "mean", "low", "high"]].reset_index(drop=True)
    drawing = Bars("time_steps", "label", "time steps T", "milliseconds per training step", "data")
    caption = (
        "Median over a run's epochs, the first left out, of the time of one optimizer step, loading of data and "
        "recording included. A dot is a run, a whisker the 95 % interval. "
        "Runs that shared a machine disturb each other."
    )
    return [Figure("overhead", "Time of a training step", caption, data, drawing)]
