"""Differences between two kinds of runs, seed by seed, wherever both were trained under the same conditions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from .comparison import Paired, by_seed, estimate, in_words, paired, scene_columns, scene_keys
from .labels import RECIPE
from .paper.reported import claimed_gain

Verdict = Literal["supported", "not supported", "cannot tell", "not tested here"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and what these runs say about it; `figure` is the family of figures behind it."""

    text: str
    verdict: Verdict
    reason: str
    figure: str | None = None


@dataclass(frozen=True)
class Effect:
    """One difference: where, its interval, and its value for every seed; `context` is what else was the same."""

    where: str
    paired: Paired
    data: str = ""
    time_steps: int = 0
    context: str = ""
    by_seed: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))

    @property
    def is_tested(self) -> bool:
        """Is there an interval?"""
        return self.paired.n > 1 and not np.isnan(self.paired.low)


@dataclass(frozen=True)
class Test:
    """Whether a claim holds for an effect, and whether the interval leaves it possible."""

    effect: Effect
    holds: bool
    is_possible: bool


def is_higher(effect: Effect) -> Test:
    """Of a claim that one is above the other."""
    return Test(effect, effect.paired.low > 0, effect.paired.high > 0)


def plain(table: Any, kind: str) -> pd.Series:
    """Rows of a policy as the paper has it."""
    return (table["policy"] == kind) & _unusual_only(table, ())


def with_policy(table: Any, field: str, holds: Sequence[bool]) -> pd.Series:
    """Rows of sage in which this field is as asked, and all others are the paper's."""
    return (table["policy"] == "sage") & pd.Series(list(holds), index=table.index) & _unusual_only(table, (field,))


def effects(table: Any, mine: Any, theirs: Any, metric: str = "last_top1") -> list[Effect]:
    """`mine - theirs` for every data, T and scene that has both."""
    if table.empty:
        return []
    scene = scene_columns(table, metric)
    keys = scene_keys(table, scene)
    told = [name for name in scene[2:] if scene_keys(table[mine | theirs], [name]).nunique() > 1]
    differences: list[Effect] = []
    for _, rows in table.groupby(keys, sort=False):
        sides: list[Any] = [by_seed(rows[mask[rows.index]], metric) for mask in (mine, theirs)]
        left, right = sides
        seeds = left.index.intersection(right.index)
        if len(seeds) == 0:
            continue
        data, time_steps = str(rows["data"].iloc[0]), int(rows["time_steps"].iloc[0])
        result = paired(list(left[seeds]), list(right[seeds]), claimed_gain(data))
        context = "".join(f", {name.removeprefix(RECIPE)}={rows[name].iloc[0]}" for name in told)
        where = f"{data} T={time_steps}{context}"
        differences.append(Effect(where, result, data, time_steps, context, left[seeds] - right[seeds]))
    return differences


def effect_of(where: str, differences: Sequence[float]) -> Effect:
    """Of differences that were taken already."""
    seen, nan = estimate(differences), float("nan")
    return Effect(where, Paired(seen.n, seen.mean, seen.low, seen.high, nan, nan, None, in_words(seen), ""))


def judge(text: str, tests: Sequence[Test], untested: str, figure: str | None, scale: str = "") -> Claim:
    """Supported if every test with an interval holds, not supported if one leaves the claim no room.

    In between the intervals are too wide to tell; without an interval nothing was tested.
    """
    told = "; ".join(f"{test.effect.where}: {_told(test.effect.paired)}" for test in tests)
    done = [test for test in tests if test.effect.is_tested]
    if not done:
        return Claim(text, "not tested here", told or untested, None)
    if all(test.holds for test in done):
        return Claim(text, "supported", told + scale, figure)
    if all(test.is_possible for test in done):
        told += "; too few seeds to tell: the intervals leave the claim possible"
        return Claim(text, "cannot tell", told + scale, figure)
    return Claim(text, "not supported", told + scale, figure)


def _told(result: Paired) -> str:
    seeds = f" ({result.n} seeds)" if result.n > 1 else ""
    return result.words + seeds


def _unusual_only(table: Any, fields: Sequence[str]) -> pd.Series:
    """Rows whose policy is as in the paper, but for these fields."""
    return pd.Series([set(unusual) <= set(fields) for unusual in table["unusual"]], index=table.index, dtype=bool)
