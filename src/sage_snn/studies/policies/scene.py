"""Where policies are compared: runs that share data, network, T and all else but the policy and the seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..comparison import baseline_labels, by_seed, plain_label, scene_columns, scene_keys, setting_words
from ..paper.reported import TITLES
from ..results import RunResult

NETWORK = "model="  # the word of a label for what the network's title tells


@dataclass(frozen=True, eq=False)
class Scene:
    """One setting: its title, the policy of each run in it, and what the runs reached and cost by seed."""

    title: str
    rows: Any
    names: pd.Series  # row -> policy
    is_baseline: pd.Series

    def values(self, name: str, metric: str) -> pd.Series:
        """Seed -> value of a policy; empty where it was not run."""
        return by_seed(self.rows[self.names == name], metric)

    def baseline(self, metric: str) -> pd.Series:
        """Seed -> value of the baseline."""
        return by_seed(self.rows[self.is_baseline], metric)

    def pairs(self, name: str, metric: str) -> tuple[pd.Series, pd.Series]:
        """A policy and the baseline, for the seeds that both have."""
        mine: Any = self.values(name, metric)
        theirs: Any = self.baseline(metric)
        seeds = mine.index.intersection(theirs.index)
        return mine[seeds], theirs[seeds]


def scenes(runs: Sequence[RunResult], rows: Any, baseline: str) -> list[Scene]:
    """By data, network and T; `rows` is the table of the runs, `baseline` the label that others are paired with."""
    columns = scene_columns(rows, "last_top1")
    networks = [run.recipe.model.title for run in runs]
    several = {"data": rows["data"].nunique() > 1, "network": len(set(networks)) > 1}
    order = sorted(range(len(rows)), key=lambda i: (rows["data"].iloc[i], networks[i], rows["time_steps"].iloc[i]))
    made: list[Scene] = []
    for _, part in rows.iloc[order].groupby(scene_keys(rows, columns).iloc[order], sort=False):
        first = part.iloc[0].to_dict()
        names = part.apply(lambda row: plain_label(row.to_dict()), axis=1)
        wanted = baseline_labels(baseline, {name: first[name] for name in columns})
        title = _title(first, networks[part.index[0]], several)
        made.append(Scene(title, part, names, part["label"].isin(wanted)))
    return made


def _title(row: dict[str, Any], network: str, several: dict[str, bool]) -> str:
    """`Spikformer-4-64, T = 2`: what tells the scene apart, and T always."""
    told = [TITLES.get(row["data"], str(row["data"]))] if several["data"] else []
    told += [network] if several["network"] else []
    words = [word for words in setting_words(row) for word in words if not word.startswith(NETWORK)]
    return ", ".join([*told, f"T = {row['time_steps']}", *words])
