"""Many comparisons at once: the p value of each, and Holm's correction for their number."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.05


def p_value(differences: Sequence[float]) -> float:
    """Of a two-sided t test that the mean is zero; NaN for fewer than two values, or with a NaN among them."""
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or np.isnan(values).any():
        return math.nan
    error = values.std(ddof=1) / math.sqrt(len(values))
    if error == 0:
        return 1.0 if values[0] == 0 else 0.0
    return float(2 * stats.t.sf(abs(values.mean()) / error, len(values) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p values: below 0.05 where the family errs at most once in twenty; a NaN is no comparison."""
    tested = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    corrected, largest = [math.nan] * len(p_values), 0.0
    for done, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - done) * p))
        corrected[place] = largest
    return corrected
