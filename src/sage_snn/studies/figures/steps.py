"""Accuracy of converted networks against the time steps that they are given."""

# pyright: reportArgumentType=false
# pandas types every selection as a union of table, column and cell, which none of this depends on.

from collections import Counter

import numpy as np
import pandas as pd

from .figure import Figure
from .lines import Lines
from .tidy import Group, Member, band, groups

COLUMNS = ["data", "label", "time_steps", "top1", "low", "high", "ann"]


def steps_figures(members: list[Member]) -> list[Figure]:
    """A curve per label over the steps that are averaged, beside the network that it was converted from."""
    gathered = groups(members)
    often = Counter((group.data, group.label) for group in gathered)
    rows = [
        row
        for group in gathered
        for row in _curve(group, f"{group.label}, T = {group.time_steps}" if often[group.data, group.label] > 1 else "")
    ]
    if not rows:
        return []
    data = pd.DataFrame(rows, columns=COLUMNS)
    titles = ("time steps that are averaged", "test top-1 (%)")
    drawing = Lines("time_steps", "top1", "label", *titles, column="data", log_x=True, levels="ann")
    caption = (
        "Accuracy when only the first time steps are averaged, mean over seeds; the band reaches from the lowest to "
        "the highest seed. A dotted line is the training before the conversion, in the colour of its curve."
    )
    return [Figure("steps", "Accuracy against time steps", caption, data, drawing)]


def _curve(group: Group, label: str) -> list[tuple[object, ...]]:
    """A row per number of steps that any run of the group was tested with."""
    values: dict[int, list[float]] = {}
    for member in group.members:
        for steps, top1 in (member.run.summary.get("top1_by_steps") or {}).items():
            if top1 is not None:
                values.setdefault(int(steps), []).append(float(top1))
    ann = _before(group)
    return [
        (group.data, label or group.label, steps, float(np.mean(seen)), *band(pd.Series(seen)), ann)
        for steps, seen in sorted(values.items())
    ]


def _before(group: Group) -> float:
    """Accuracy of the stage before the last, mean over seeds; NaN without one."""
    stages = [stages[-1] for member in group.members if (stages := member.run.summary.get("stages"))]
    values = [float(stage["last_top1"]) for stage in stages if stage.get("last_top1") is not None]
    return float(np.mean(values)) if values else float("nan")
