"""Differences between two kinds of runs, seed by seed, wherever both were trained under the same conditions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from .comparison import Paired, claimed_gain, estimate, in_words, paired, scene_columns
from .labels import DEFAULTS, is_used

Verdict = Literal["supported", "not supported", "not tested here"]


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


def plain(table: Any, kind: str) -> pd.Series:
    """Rows of a policy as the paper has it: every field of its own at the default."""
    return (table["policy"] == kind) & _at_defaults(table, kind, apart=())


def with_policy(table: Any, field: str, holds: Sequence[bool]) -> pd.Series:
    """Rows of sage in which this field is as asked, and all others are at their defaults."""
    return (
        (table["policy"] == "sage") & pd.Series(list(holds), index=table.index) & _at_defaults(table, "sage", (field,))
    )


def effects(table: Any, mine: Any, theirs: Any, metric: str = "last_top1") -> list[Effect]:
    """`mine - theirs` for every data, T and scene that has both."""
    if table.empty:
        return []
    scene = scene_columns(table, metric)
    keys = table[scene].astype(str).agg(" | ".join, axis=1)
    found: list[Effect] = []
    for _, rows in table.groupby(keys, sort=False):
        left, right = (rows[mask[rows.index]].drop_duplicates("seed").set_index("seed") for mask in (mine, theirs))
        seeds = left.index.intersection(right.index)
        if len(seeds) == 0:
            continue
        data, time_steps = str(rows["data"].iloc[0]), int(rows["time_steps"].iloc[0])
        a, b = left.loc[seeds, metric].astype(float), right.loc[seeds, metric].astype(float)
        result = paired(list(a), list(b), claimed_gain(data))
        context = "".join(f", {name}={rows[name].iloc[0]}" for name in scene[2:])
        where = f"{data} T={time_steps}{context}"
        found.append(Effect(where, result, data, time_steps, context, a - b))
    return found


def effect_of(where: str, differences: Sequence[float]) -> Effect:
    """Of differences that were taken already."""
    found, nan = estimate(differences), float("nan")
    return Effect(where, Paired(found.n, found.mean, found.low, found.high, nan, nan, None, in_words(found), ""))


def judge(text: str, tests: Sequence[tuple[Effect, bool]], untested: str, figure: str | None, scale: str = "") -> Claim:
    """Supported if every test with an interval holds; untested if there is none."""
    told = "; ".join(f"{effect.where}: {_told(effect.paired)}" for effect, _ in tests)
    verdicts = [holds for effect, holds in tests if effect.is_tested]
    if not verdicts:
        return Claim(text, "not tested here", told or untested, None)
    return Claim(text, "supported" if all(verdicts) else "not supported", told + scale, figure)


def _told(result: Paired) -> str:
    seeds = f" ({result.n} seeds)" if result.n > 1 else ""
    return result.words + seeds


def _at_defaults(table: Any, kind: str, apart: Sequence[str]) -> pd.Series:
    kept = pd.Series(True, index=table.index)
    for column in table.columns:
        name = str(column).removeprefix("policy.")
        if str(column).startswith("policy.") and is_used(kind, name) and column not in apart:
            kept &= table[column] == DEFAULTS[name]
    return kept
