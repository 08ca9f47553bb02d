"""What seeds allow one to say: intervals, paired differences, and words that follow from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from .conditions import TOLD, condition_words
from .labels import APPLIED, RECIPE, context_words, is_context
from .paper.reported import claimed_gain
from .results import ResultError, field_columns

CONFIDENCE = 0.95
POWER = 0.8
RESAMPLES = 9999
EXACT = 6  # values up to which all resamples are taken, n^n of them
MOST_SEEDS = 100_000
FEW = 20  # below about so many seeds a percentile bootstrap covers noticeably less than it says
CAUTION = (
    f"with fewer than {FEW} seeds the bootstrap interval is too narrow (it resamples the few values that were seen): "
    "go by the t interval"
)
NAN = float("nan")
SETTING = (RECIPE, APPLIED)


@dataclass
class Estimate:
    """Mean, sample deviation and 95 % t interval; low and high are NaN for one value."""

    mean: float
    std: float
    n: int
    low: float
    high: float


@dataclass
class Paired:
    """Mean difference over seeds with its t interval, the bootstrap's beside it, and what follows in words."""

    n: int
    mean: float
    low: float
    high: float
    bootstrap_low: float
    bootstrap_high: float
    seeds_needed: int | None
    words: str
    caution: str


def estimate(values: Sequence[float]) -> Estimate:
    """Of independent values; a NaN among them makes the mean NaN rather than vanish."""
    numbers = np.asarray(values, dtype=np.float64)
    n = len(numbers)
    if n == 0:
        return Estimate(NAN, NAN, 0, NAN, NAN)
    mean = float(numbers.mean())
    if n == 1:
        return Estimate(mean, NAN, 1, NAN, NAN)
    std = float(numbers.std(ddof=1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * std / math.sqrt(n)
    return Estimate(mean, std, n, mean - half, mean + half)


def apart(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Difference of the means of runs that are not paired, by Welch's t; n is the smaller number of runs.

    A difference of means has no deviation of its own: std is NaN.
    """
    mine, theirs = estimate(values), estimate(others)
    mean, n = mine.mean - theirs.mean, min(mine.n, theirs.n)
    if n < 2:
        return Estimate(mean, NAN, n, NAN, NAN)
    parts = [(one.std**2 / one.n, one.n - 1) for one in (mine, theirs)]
    error = sum(part for part, _ in parts)
    if not error > 0:  # equal runs, or a NaN among them
        return Estimate(mean, NAN, n, mean, mean)
    freedom = error**2 / sum(part**2 / less for part, less in parts)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(error)
    return Estimate(mean, NAN, n, mean - half, mean + half)


def paired(values: Sequence[float], baseline_values: Sequence[float], claimed_gain: float) -> Paired:
    """Per seed difference `values - baseline_values`, which are in the same order of seeds."""
    if len(values) != len(baseline_values):
        raise ResultError(
            f"{len(values)} values cannot be paired with {len(baseline_values)}; give both for the same seeds"
        )
    if not claimed_gain > 0:
        raise ResultError(f"the claimed gain must be positive, not {claimed_gain}")
    differences = np.asarray(values, dtype=np.float64) - np.asarray(baseline_values, dtype=np.float64)
    difference = estimate(list(differences))
    broken = int(np.isnan(differences).sum())
    if broken:
        words = f"not compared: {broken} of {difference.n} seeds ended without a number (NaN)"
        return Paired(difference.n, NAN, NAN, NAN, NAN, NAN, None, words, "")
    low, high = bootstrap(differences)
    needed = seeds_needed(difference.std, claimed_gain) if difference.n > 1 else None
    caution = CAUTION if 1 < difference.n < FEW else ""
    return Paired(
        difference.n, difference.mean, difference.low, difference.high, low, high, needed, in_words(difference), caution
    )


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """Percentile interval of the mean; the same numbers every time."""
    n = len(values)
    if n < 2:
        return NAN, NAN
    if n <= EXACT:  # so few values have few means: drawing them at random would miss the quantile by a whole step
        drawn = np.indices((n,) * n).reshape(n, -1).T
    else:
        drawn = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    low, high = np.quantile(values[drawn].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def seeds_needed(std: float, gain: float) -> int | None:
    """Pairs with which a two-sided t test at 5 % sees `gain` in 80 % of studies; None if more than 100,000."""
    if std == 0:
        return 2
    few, many = 2, 2
    while power(many, std, gain) < POWER:
        few, many = many, many * 2
        if many > MOST_SEEDS:
            return None
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if power(middle, std, gain) >= POWER else (middle + 1, many)
    return many


def power(n: int, std: float, gain: float) -> float:
    """Chance that a paired t test of n seeds excludes zero when the true difference is `gain`."""
    shift = gain * math.sqrt(n) / std
    if shift > 30:  # beyond any doubt, and beyond what the noncentral t is computed for
        return 1.0
    edge = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return float(stats.nct.sf(edge, n - 1, shift) + stats.nct.cdf(-edge, n - 1, shift))


def in_words(difference: Estimate) -> str:
    """What the interval allows one to say."""
    if difference.n == 0:
        return "no seed in common with the baseline"
    if difference.n == 1:
        return "one seed only: no interval"
    low, high = difference.low, difference.high
    if low <= 0 <= high:
        return f"no difference seen: the interval [{_shown(low)}, {_shown(high)}] holds zero"
    if low > 0:
        return f"higher by {_shown(low)} to {_shown(high)}"
    return f"lower by {_shown(-high)} to {_shown(-low)}"


def compare(table: pd.DataFrame, metric: str = "last_top1", baseline: str = "fixed") -> pd.DataFrame:
    """A row per data, T and label: the seeds' estimate, and the paired difference to the baseline of the same scene.

    `seeds_needed` is for the paper's gain in accuracy, and for 1 % of the baseline in any other metric.
    """
    if metric not in table:
        raise ResultError(f"no column {metric!r}; compare last_top1, best_top1, seconds or images_per_second")
    scene = scene_columns(table, metric)
    rows: list[dict[str, Any]] = []
    everything: Any = table
    for keys, group in everything.groupby([*scene, "label"], sort=False, dropna=False):
        *where, label = keys if isinstance(keys, tuple) else (keys,)
        values = dict(zip(scene, where, strict=True))
        others = everything[np.logical_and.reduce([_same(everything[key], value) for key, value in values.items()])]
        wanted = baseline_labels(baseline, values)
        reference = others[others["label"].isin(wanted)]
        is_baseline = str(label) in wanted
        row = {"label": label, "is_baseline": is_baseline}
        rows.append(values | row | _compared(group, reference, metric, is_baseline))
    compared = pd.DataFrame(rows)
    compared["seeds_needed"] = compared["seeds_needed"].astype("Int64")
    return compared


def beside_baseline(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows of a comparison that have a baseline in the same setting, and their baselines."""
    scene: list[Any] = [name for name in compared if name in ("data", "time_steps") or str(name).startswith(SETTING)]
    keys = scene_keys(compared, scene)
    kept: Any = compared[keys.isin(set(keys[compared["pairs"] > 0]))]
    return kept.reset_index(drop=True)


def scene_columns(table: pd.DataFrame, metric: str) -> list[str]:
    """What two runs must share to be compared; recording and threads change the time, but no accuracy."""
    timed_only, is_timed = (f"{RECIPE}observe.", f"{APPLIED}{TOLD}"), not metric.endswith("top1")
    apart = [
        name
        for name in field_columns(table)
        if (is_timed if name.startswith(timed_only) else is_context(name.removeprefix(RECIPE)))
    ]
    return ["data", "time_steps", *apart]


def scene_keys(table: Any, scene: Sequence[str]) -> Any:
    """The scene of each row as one text; a field that a kind of network lacks is part of it too."""
    texts = [" | ".join(map(str, values)) for values in table[list(scene)].to_numpy(object)]
    return pd.Series(texts, index=table.index, dtype=object)


def setting_words(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The words that labels have for the setting of a row of a table: of its recipe, and of how it was trained."""
    fields = {name.removeprefix(RECIPE): value for name, value in values.items() if name.startswith(RECIPE)}
    return context_words(fields, fields), condition_words(values, values)


def plain_label(row: Mapping[str, Any]) -> str:
    """The label of a row of a table without the words of its setting: who it is, wherever it was trained."""
    label = str(row["label"])
    for words in reversed(setting_words(row)):
        label = label.removesuffix(" ".join(["", *words]))
    return label


def baseline_labels(baseline: str, values: Mapping[str, Any]) -> set[str]:
    """How the baseline's runs may be labelled in a setting; a variant need not repeat what it sets itself."""
    recipe, applied = setting_words(values)
    return {" ".join([baseline, *words, *applied]) for words in ([], recipe)}


def _compared(group: Any, reference: Any, metric: str, is_baseline: bool) -> dict[str, object]:
    mine, theirs = by_seed(group, metric), by_seed(reference, metric)
    own = estimate(list(mine))
    row: dict[str, object] = {"n": own.n, "missing": int(mine.isna().sum()), "mean": own.mean, "std": own.std}
    row |= {"low": own.low, "high": own.high}
    if is_baseline or theirs.empty:
        words = "the baseline" if is_baseline else "no baseline run in the same setting"
        if row["missing"]:
            words += f"; {row['missing']} of {own.n} seeds ended without a number (NaN)"
        difference = Paired(0, NAN, NAN, NAN, NAN, NAN, None, words, "")
    else:
        common = mine.index.intersection(theirs.index)
        accuracy = metric.endswith("top1")
        gain = claimed_gain(str(group["data"].iloc[0])) if accuracy else float(theirs.abs().mean()) / 100
        difference = paired(list(mine[common]), list(theirs[common]), gain if gain > 0 else 1.0)
    return row | {
        "pairs": difference.n,
        "difference": difference.mean,
        "difference_low": difference.low,
        "difference_high": difference.high,
        "bootstrap_low": difference.bootstrap_low,
        "bootstrap_high": difference.bootstrap_high,
        "seeds_needed": difference.seeds_needed,
        "words": difference.words,
        "caution": difference.caution,
    }


def by_seed(rows: Any, metric: str) -> pd.Series:
    """Seed -> value; a run that was read twice, or recorded more, counts once."""
    for seed, same in rows.groupby("seed"):
        if len(same) > 1 and metric.endswith("top1") and same[metric].nunique(dropna=False) > 1:
            raise ResultError(
                f"seed {seed} of {same['label'].iloc[0]!r} has {len(same)} different results "
                f"({', '.join(same['folder'])}); compare one of them"
            )
    return rows.drop_duplicates("seed").set_index("seed")[metric].astype(float)


def _same(column: pd.Series, value: object) -> np.ndarray:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return column.isna().to_numpy() if missing else np.array([other == value for other in column])


def _shown(value: float) -> str:
    """Two digits that count, so that a small difference is never shown as zero."""
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"
