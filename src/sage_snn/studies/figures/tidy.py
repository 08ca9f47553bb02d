"""From runs to the tidy tables that figures draw."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pandas types every selection as a union of table, column and cell, which none of this depends on.

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..comparison import estimate
from ..results import ResultError, RunResult
from .style import label_order

POINTS = 150  # of a curve: as many as a screen can show, few enough for a small page
MOST = 6  # figures of one family
PAPER_STEPS = 4  # time steps of the paper's main table


@dataclass(frozen=True, eq=False)
class Member:
    """A run with its names in the study; what it recorded is read once, when a figure asks for it."""

    run: RunResult
    data: str
    label: str
    time_steps: int
    seed: int

    @cached_property
    def signals(self) -> pd.DataFrame:
        """What the policy did step by step; empty where nothing was recorded."""
        try:
            return self.run.signals()
        except ResultError:
            return pd.DataFrame(columns=["epoch", "step", "block", "slope"])

    @cached_property
    def observations(self) -> pd.DataFrame | None:
        """Statistics at several temperatures; None where nothing was observed."""
        rows = self.run.observations()
        return None if rows is None or rows.empty else rows


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in the seed only."""

    data: str
    label: str
    time_steps: int
    members: tuple[Member, ...]

    @property
    def title(self) -> str:
        """The group in words."""
        return f"{self.label}, {self.data}, T = {self.time_steps}"

    @property
    def seeds(self) -> str:
        """What a curve of the group is made of."""
        if len(self.members) == 1:
            return f"One run, seed {self.members[0].seed}."
        return f"Mean of {len(self.members)} seeds; the band reaches from the lowest to the highest."


def members(runs: Sequence[RunResult], rows: pd.DataFrame) -> list[Member]:
    """The runs, with the table that `results.table` makes of them, in the order of figures.

    That is: data, label (the plain policies first), time steps, seed.
    """
    listed = [
        Member(run, str(row["data"]), str(row["label"]), int(row["time_steps"]), int(row["seed"]))
        for run, row in zip(runs, rows.to_dict("records"), strict=True)
    ]
    return sorted(listed, key=lambda m: (m.data, label_order(m.label), m.time_steps, m.seed))


def groups(members: Iterable[Member]) -> list[Group]:
    """Runs gathered by data, label and time steps."""
    gathered: dict[tuple[str, str, int], list[Member]] = {}
    for member in members:
        gathered.setdefault((member.data, member.label, member.time_steps), []).append(member)
    return [Group(*key, tuple(parts)) for key, parts in gathered.items()]


def typical(members: Iterable[Member]) -> list[Group]:
    """Of each data set and label the group whose time steps are nearest to the paper's."""
    nearest: dict[tuple[str, str], Group] = {}
    for group in groups(members):
        key = (group.data, group.label)
        if key not in nearest or _distance(group) < _distance(nearest[key]):
            nearest[key] = group
    return list(nearest.values())


def name_of(family: str, group: Group, among: Sequence[Group]) -> str:
    """File name and anchor: the family alone if it has one figure, with the group's words otherwise."""
    if len(among) == 1:
        return family
    words = re.sub(r"[^a-z0-9]+", "-", f"{group.data} {group.label}".lower()).strip("-")[:60]
    number = list(among).index(group) + 1  # two labels may share their letters
    return f"{family}-{number}-{words}"


def thinned(parts: Iterable[pd.DataFrame], keys: list[str], values: list[str]) -> pd.DataFrame:
    """Mean of each value over stretches of steps and over runs, with the lowest and highest run, in long form.

    `parts` holds a table per run with a column `step`, the `keys` and the `values`.
    """
    parts = [part for part in parts if not part.empty]
    if not parts:
        return pd.DataFrame(columns=[*keys, "step", "measure", "value", "low", "high", "runs"])
    stretch = max(1, -(-(max(int(part["step"].max()) for part in parts) + 1) // POINTS))
    means: list[pd.DataFrame] = []
    for run, part in enumerate(parts):
        at = part["step"] // stretch * stretch + (stretch - 1) / 2
        mean = part.assign(step=at).groupby([*keys, "step"])[values].mean().reset_index()
        means.append(mean.assign(run=run))
    long = pd.concat(means).melt([*keys, "step", "run"], values, "measure", "value").dropna(subset=["value"])
    by_step = long.groupby([*keys, "measure", "step"], sort=True)["value"]
    curves = by_step.agg(value="mean", low="min", high="max", runs="count").reset_index()
    curves.loc[curves["runs"] < 2, ["low", "high"]] = np.nan
    return curves


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 95 % interval; the ends are NaN for a single value."""
    seen = estimate(values)
    return seen.mean, seen.low, seen.high


def band(values: pd.Series) -> tuple[float, float]:
    """Lowest and highest value over seeds, NaN for a single one."""
    return (float(values.min()), float(values.max())) if len(values) > 1 else (np.nan, np.nan)


def block_name(block: Any) -> str:
    """A block as it stands in titles; counted from 0 as in the recorded files."""
    return f"block {int(block)}"


def _distance(group: Group) -> int:
    return abs(group.time_steps - PAPER_STEPS)
