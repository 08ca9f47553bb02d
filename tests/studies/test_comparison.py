import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sage_snn.studies.comparison import (
    beside_baseline,
    bootstrap,
    compare,
    estimate,
    paired,
    power,
    scene_keys,
    seeds_needed,
)
from sage_snn.studies.results import ResultError, field_columns

A, B = [51.2, 50.1, 52.4, 49.9, 51.0], [50.3, 50.2, 51.1, 49.0, 50.6]


def rows(label, values, data="cifar10", time_steps=4, seeds=None, **more):
    seeds = seeds or range(1, len(values) + 1)
    policy = label.split()[0]
    return [
        {"folder": f"{label}-{seed}", "data": data, "policy": policy, "label": label, "time_steps": time_steps}
        | {"seed": seed, "last_top1": value, "best_top1": value, "images_per_second": 100.0}
        | more
        for seed, value in zip(seeds, values, strict=True)
    ]


def test_the_interval_is_that_of_scipy():
    found = estimate(A)
    low, high = stats.t.interval(0.95, len(A) - 1, loc=np.mean(A), scale=stats.sem(A))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.mean, found.std, found.n) == pytest.approx((np.mean(A), np.std(A, ddof=1), 5))


def test_the_paired_interval_is_that_of_the_paired_t_test():
    found, test = paired(A, B, 0.81), stats.ttest_rel(A, B)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.mean == pytest.approx(np.mean(np.subtract(A, B)))


def test_the_bootstrap_is_that_of_scipy():
    values = np.random.default_rng(3).normal(0.4, 1.0, 12)
    options = {"method": "percentile", "n_resamples": 50_000, "rng": np.random.default_rng(1)}
    theirs = stats.bootstrap((values,), np.mean, **options).confidence_interval
    assert bootstrap(values) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_the_bootstrap_of_few_seeds_takes_every_resample_and_is_narrower():
    found = paired(A, B, 0.81)
    means = [np.mean(drawn) for drawn in itertools.product(np.subtract(A, B), repeat=5)]
    assert (found.bootstrap_low, found.bootstrap_high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert found.bootstrap_high - found.bootstrap_low < found.high - found.low
    assert "too narrow" in found.caution
    assert paired(A, B, 0.81) == found, "the same numbers every time"
    assert paired(A * 5, B * 5, 0.81).caution == ""


def test_without_a_difference_five_seeds_see_one_in_five_percent_of_studies():
    rng = np.random.default_rng(0)
    excluded = 0
    for _ in range(1000):
        common = rng.normal(60, 1.0, 5)
        found = paired(common + rng.normal(0, 0.5, 5), common + rng.normal(0, 0.5, 5), 0.81)
        excluded += not found.low <= 0 <= found.high
    assert 30 <= excluded <= 70


def test_seeds_needed_are_the_fewest_that_reach_the_power():
    needed = seeds_needed(0.5, 0.81)
    assert needed is not None
    assert power(needed, 0.5, 0.81) >= 0.8 > power(needed - 1, 0.5, 0.81)
    assert needed == 6  # d = 1.62: five pairs have a power of 0.76, six of 0.88
    assert seeds_needed(1.0, 0.5) == 34  # the textbook's value for d = 0.5, two-sided, paired
    assert seeds_needed(0.0, 0.5) == 2
    assert seeds_needed(1e-9, 0.5) == 2
    assert seeds_needed(1e6, 0.5) is None


def test_power_agrees_with_simulation():
    rng = np.random.default_rng(0)
    tests = stats.ttest_1samp(rng.normal(0.8, 1.0, (4000, 8)), 0.0, axis=1)
    assert power(8, 1.0, 0.8) == pytest.approx((tests.pvalue < 0.05).mean(), abs=0.03)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, 1.4, 0.9, 1.2], "higher by 0.77 to 1.48"),
        ([-1.0, -1.4, -0.9, -1.2], "lower by 0.77 to 1.48"),
        ([1.0, -1.0, 0.5], "no difference seen: the interval [-2.42, 2.75] holds zero"),
        ([1.0], "one seed only: no interval"),
        ([], "no seed in common with the baseline"),
        ([1.0, math.nan, 2.0], "not compared: 1 of 3 seeds ended without a number (NaN)"),
        ([0.0, 0.0], "no difference seen: the interval [0.00, 0.00] holds zero"),
    ],
)
def test_words_follow_from_the_interval(values, words):
    assert paired(values, [0.0] * len(values), 1.0).words == words


def test_bad_pairs_are_refused():
    with pytest.raises(ResultError, match="2 values cannot be paired with 1"):
        paired([1.0, 2.0], [1.0], 1.0)
    with pytest.raises(ResultError, match="must be positive"):
        paired([1.0], [1.0], 0.0)


def test_one_value_has_no_interval():
    found = estimate([3.0])
    assert found.mean == 3.0
    assert math.isnan(found.low)
    assert math.isnan(found.std)
    assert estimate([]).n == 0


def test_compare_pairs_common_seeds_of_the_same_data_and_time_steps():
    table = pd.DataFrame(
        [
            *rows("fixed", B),
            *rows("sage", A[:4], seeds=[2, 1, 3, 9]),
            *rows("sage", A, time_steps=2),
            *rows("fixed", B, "cifar100"),
        ]
    )
    found = compare(table).set_index(["data", "time_steps", "label"])
    sage = found.loc[("cifar10", 4, "sage")]
    expected = paired([A[1], A[0], A[2]], B[:3], 0.81)
    assert (sage["n"], sage["pairs"]) == (4, 3)
    assert (sage["difference"], sage["difference_low"]) == pytest.approx((expected.mean, expected.low))
    assert sage["seeds_needed"] == expected.seeds_needed
    assert found.loc[("cifar10", 4, "fixed"), "words"] == "the baseline"
    assert found.loc[("cifar10", 2, "sage"), "words"] == "no baseline run in the same setting"
    assert len(found) == 4


def test_compare_keeps_different_widths_apart():
    table = pd.DataFrame(
        [
            row
            for dim, shift in ((16, 0.0), (32, 9.0))
            for kind, values in (("fixed", B), ("sage", A))
            for row in rows(f"{kind} dim={dim}", [v + shift for v in values], **{"recipe.model.dim": dim})
        ]
    )
    found = compare(table)
    assert list(found["words"]).count("the baseline") == 2
    assert found["difference"].dropna().tolist() == pytest.approx([np.mean(np.subtract(A, B))] * 2)


def test_a_field_that_some_networks_lack_is_part_of_the_scene():
    table = pd.DataFrame(
        [*rows("fixed", B, **{"recipe.model.dim": 16}), *rows("sage", A, **{"recipe.model.dim": None})]
    )
    assert scene_keys(table, ["data", "recipe.model.dim"]).nunique() == 2
    assert compare(table).set_index("label").loc["sage", "words"] == "no baseline run in the same setting"
    same = pd.DataFrame(
        [*rows("fixed", B, **{"recipe.model.dim": None}), *rows("sage", A, **{"recipe.model.dim": None})]
    )
    assert compare(same).set_index("label").loc["sage", "pairs"] == 5


def test_only_settings_that_have_the_baseline_are_kept_beside_it():
    table = pd.DataFrame([*rows("fixed", B), *rows("sage", A), *rows("tet", A, time_steps=2)])
    assert beside_baseline(compare(table))["label"].tolist() == ["fixed", "sage"]
    assert beside_baseline(compare(table[table["label"] != "fixed"])).empty


def test_a_column_that_somebody_adds_to_a_table_is_no_setting():
    table = pd.DataFrame([*rows("fixed", B, lr="a", **{"policy.gain": 1}), *rows("sage", A, lr="b")])
    assert field_columns(table) == []
    assert compare(table).set_index("label").loc["sage", "pairs"] == 5


def test_nan_accuracies_are_told_not_averaged_away():
    table = pd.DataFrame([*rows("fixed", B), *rows("sage", [*A[:4], math.nan])])
    sage = compare(table).set_index("label").loc["sage"]
    assert math.isnan(sage["mean"])
    assert (sage["n"], sage["missing"]) == (5, 1)
    assert sage["words"] == "not compared: 1 of 5 seeds ended without a number (NaN)"


def test_one_seed_gives_a_difference_without_an_interval():
    sage = compare(pd.DataFrame([*rows("fixed", B[:1]), *rows("sage", A[:1])])).set_index("label").loc["sage"]
    assert sage["words"] == "one seed only: no interval"
    assert sage["difference"] == pytest.approx(A[0] - B[0])
    assert math.isnan(sage["difference_low"])


def test_a_run_read_twice_counts_once_and_two_results_of_a_seed_are_refused():
    twice = pd.DataFrame([*rows("fixed", B), *rows("sage", A), *rows("sage", A)])
    assert compare(twice).set_index("label").loc["sage", "n"] == 5
    with pytest.raises(ResultError, match="seed 1 of 'sage' has 2 different results"):
        compare(pd.DataFrame([*rows("fixed", B), *rows("sage", A), *rows("sage", B)]))


def test_an_unknown_metric_is_refused():
    with pytest.raises(ResultError, match="no column 'top1'"):
        compare(pd.DataFrame(rows("fixed", B)), "top1")
