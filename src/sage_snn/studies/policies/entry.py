"""A line of the table of policies: its differences to the baseline, what they are worth, its cost, what it moved."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from ..comparison import Estimate, estimate
from ..correction import LEVEL, holm, p_value
from ..results import RunResult
from .moved import what_moved
from .scene import Scene, scenes

NAN = float("nan")
Verdict = Literal["above", "below", "cannot tell", "no interval"]


@dataclass(frozen=True, eq=False)
class Difference:
    """Of a policy to the baseline, by seed; `corrected` is its p value after Holm, among all of its kind."""

    by_seed: pd.Series
    corrected: float = NAN

    @cached_property
    def seen(self) -> Estimate:
        """Mean over seeds, with its interval."""
        return estimate(list(self.by_seed))

    @property
    def is_apart(self) -> bool:
        """Is it told from zero, its many companions considered?"""
        return self.corrected < LEVEL

    @property
    def verdict(self) -> Verdict:
        """What may be said."""
        if math.isnan(self.corrected):
            return "no interval"
        if not self.is_apart:
            return "cannot tell"
        return "above" if self.seen.mean > 0 else "below"


@dataclass(frozen=True, eq=False)
class Entry:
    """A policy; what stands by scene has the scene's title as its key. `over_all` is the mean over its scenes."""

    name: str
    is_baseline: bool
    is_fixed: bool
    top1: Mapping[str, Estimate]
    differences: Mapping[str, Difference] = field(default_factory=dict)
    over_all: Difference = field(default_factory=lambda: Difference(pd.Series(dtype=float)))
    time_ratio: float = NAN  # of its training to the baseline's
    memory_mb: float = NAN  # more than the baseline's
    moved: str = ""


def entries(runs: Sequence[RunResult], rows: Any, baseline: str) -> list[Entry]:
    """The baseline, then the others from the highest difference over all scenes to the lowest."""
    places = scenes(runs, rows, baseline)
    names = list(dict.fromkeys(name for scene in places for name in scene.names))
    plain = {name for scene in places for name in scene.names[scene.is_baseline]}
    raw = {name: _by_scene(name, places) for name in names if name not in plain}
    single = _corrected({(name, title): part for name, parts in raw.items() for title, part in parts.items()})
    whole = _corrected({name: _mean_over(list(parts.values())) for name, parts in raw.items()})
    made = [
        Entry(
            name,
            name in plain,
            all(runs[i].recipe.policy.kind == "fixed" for i in _places(name, places)),
            {scene.title: estimate(list(seen)) for scene in places if len(seen := scene.values(name, "last_top1"))},
            {scene.title: single[name, scene.title] for scene in places if (name, scene.title) in single},
            whole.get(name, Difference(pd.Series(dtype=float))),
            *_cost(name, places),
            what_moved(runs[i] for i in _places(name, places)),
        )
        for name in names
    ]
    return sorted(made, key=lambda entry: (not entry.is_baseline, -_or_lowest(entry.over_all.seen.mean)))


def best_fixed(entries: Sequence[Entry]) -> Entry | None:
    """The fixed slope with the highest mean difference; the baseline, at zero, among them."""
    fixed = [entry for entry in entries if entry.is_fixed and (entry.is_baseline or len(entry.over_all.by_seed))]
    return max(fixed, key=lambda e: 0.0 if e.is_baseline else _or_lowest(e.over_all.seen.mean), default=None)


def _by_scene(name: str, places: Sequence[Scene]) -> dict[str, pd.Series]:
    """Title of a scene -> differences by seed, where the policy and the baseline share a seed."""
    pairs = {scene.title: scene.pairs(name, "last_top1") for scene in places}
    return {title: mine - theirs for title, (mine, theirs) in pairs.items() if len(mine)}


def _mean_over(parts: Sequence[pd.Series]) -> pd.Series:
    """By seed, of the seeds that all scenes have; a mean of fewer would be of other scenes."""
    return pd.concat(parts, axis=1, join="inner").mean(axis=1, skipna=False) if parts else pd.Series(dtype=float)


def _corrected(differences: Mapping[Any, pd.Series]) -> dict[Any, Difference]:
    p_values = holm([p_value(list(part)) for part in differences.values()])
    return {key: Difference(part, p) for (key, part), p in zip(differences.items(), p_values, strict=True)}


def _cost(name: str, places: Sequence[Scene]) -> tuple[float, float]:
    """Medians over seeds and scenes: ratio of the training time, difference of the peak memory."""
    times, memory = (_paired(name, places, metric) for metric in ("seconds", "peak_memory_mb"))
    return float((times["mine"] / times["theirs"]).median()), float((memory["mine"] - memory["theirs"]).median())


def _paired(name: str, places: Sequence[Scene], metric: str) -> Any:
    parts = [pd.DataFrame(dict(zip(("mine", "theirs"), scene.pairs(name, metric), strict=True))) for scene in places]
    return pd.concat(parts)


def _places(name: str, places: Sequence[Scene]) -> list[int]:
    """Rows of a policy, in the order of the table of the runs."""
    return sorted(int(row) for scene in places for row in scene.rows.index[scene.names == name])


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value
