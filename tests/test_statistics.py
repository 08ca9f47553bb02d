import itertools
import math
import random

import pytest
import torch

from sage_snn.statistics import History, Statistics

STEPS, BLOCKS, WARMUP = 200, 4, 30


class StraightLine:
    """equations 5 to 7 for one block from the whole stored history, in plain floats."""

    def __init__(self, decay, first, running, momentum, eps, relative_eps):
        self.decay, self.first, self.running, self.momentum = decay, first, running, momentum
        self.eps, self.relative_eps = eps, relative_eps
        self.observed, self.smoothed = [], []

    def step(self, value):
        self.observed.append(value)
        count = len(self.observed)
        newest_first = list(reversed(self.observed))
        weights = [(1 - self.decay) * self.decay**age for age in range(count)]
        if self.first == "observation":
            weights[-1] = self.decay ** (count - 1)  # the first observation stands for all before it
        self.smoothed.append(math.fsum(w * x for w, x in zip(weights, newest_first, strict=True)) / math.fsum(weights))
        return self.score()

    def score(self):
        count = len(self.smoothed)
        if self.running == "cumulative":
            weights = [1 / count] * count
        else:
            first, later = (1 - self.momentum) ** (count - 1), range(count - 2, -1, -1)
            weights = [first] + [self.momentum * (1 - self.momentum) ** age for age in later]
        mean = math.fsum(w * m for w, m in zip(weights, self.smoothed, strict=True))
        deviation = math.sqrt(math.fsum(w * (m - mean) ** 2 for w, m in zip(weights, self.smoothed, strict=True)))
        if count == 1 or deviation == 0:
            return 0.0
        return (self.smoothed[-1] - mean) / (deviation + (self.eps * abs(mean) if self.relative_eps else self.eps))


def dispersions(seed=0):
    source = random.Random(seed)
    return [[2e-3 + 1e-5 * t * b + source.gauss(0, 3e-4) for b in range(BLOCKS)] for t in range(STEPS)]


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def scores_of(statistics, rows):
    history = History.start(len(rows[0]))
    for row in rows:
        history, _, scores = statistics.update(history, column(*row))
    return scores


OPTIONS = {
    "decay": [0.95, 0.0],
    "first": ["observation", "zero"],
    "running": ["cumulative", "exponential"],
    "restart": [False, True],
    "eps": [1e-8, 1e-3],
    "relative_eps": [False, True],
    "center": [True, False],
}


@pytest.mark.parametrize("choice", list(itertools.product(*OPTIONS.values())), ids=str)
def test_scores_equal_a_straight_line_implementation_over_200_steps(choice):
    options = dict(zip(OPTIONS, choice, strict=True))
    statistics, history = Statistics(momentum=0.03, **options), History.start(BLOCKS)
    names = ("decay", "first", "running", "eps", "relative_eps")
    references = [StraightLine(momentum=0.03, **{n: options[n] for n in names}) for _ in range(BLOCKS)]
    for step, observed in enumerate(dispersions(), start=1):
        if options["restart"] and step == WARMUP + 1:
            history = history.restarted()
            for reference in references:
                reference.smoothed.clear()
        history, smoothed, scores = statistics.update(history, column(*observed))
        expected = [reference.step(value) for reference, value in zip(references, observed, strict=True)]
        if options["center"]:
            middle = math.fsum(expected) / BLOCKS
            expected = [z - middle for z in expected]
        assert smoothed.tolist() == pytest.approx([r.smoothed[-1] for r in references], rel=1e-9, abs=0)
        assert scores.tolist() == pytest.approx(expected, rel=0, abs=1e-9)


def test_second_step_gives_the_numbers_worked_out_by_hand():
    # m: 1, then .5 * 1 + .5 * 3 = 2; mean 1.5, deviation .5, so z = 1; a steady block has z = 0.
    statistics = Statistics(decay=0.5, eps=0.0, center=False)
    history, smoothed, scores = statistics.update(History.start(2), column(1, 1))
    assert scores.tolist() == [0, 0]
    history, smoothed, scores = statistics.update(history, column(3, 1))
    assert smoothed.tolist() == [2, 1]
    assert history.mean.tolist() == [1.5, 1]
    assert history.variance.tolist() == [0.25, 0]
    assert scores.tolist() == [1, 0]


def test_centring_splits_a_score_over_the_blocks():
    centred = scores_of(Statistics(decay=0.5, eps=0.0), [[1, 1], [3, 1]])
    assert centred.tolist() == [0.5, -0.5]


def test_average_from_zero_is_corrected_for_its_start():
    _, smoothed, _ = Statistics(first="zero").update(History.start(1), column(0.3))
    assert smoothed.item() == pytest.approx(0.3, abs=1e-15)


def test_centred_scores_sum_to_zero():
    history = History.start(BLOCKS)
    for row in dispersions(seed=1):
        history, _, scores = Statistics().update(history, column(*row))
        assert abs(scores.sum().item()) < 1e-12


@pytest.mark.parametrize("running", ["cumulative", "exponential"])
@pytest.mark.parametrize("center", [True, False])
def test_no_deviation_gives_score_zero(running, center):
    statistics = Statistics(decay=0.5, running=running, eps=0.0, center=center)  # 0.5: the average is exact
    assert scores_of(statistics, [[0.25, 0.5]] * 20).tolist() == [0, 0]


def test_first_step_scores_are_zero():
    assert scores_of(Statistics(), [[1.0, 2.0, 3.0]]).tolist() == [0, 0, 0]


def test_one_block_is_centred_to_zero_and_moves_without_centring():
    rows = [[1.0], [2.0], [4.0]]
    assert scores_of(Statistics(), rows).tolist() == [0]
    assert scores_of(Statistics(center=False), rows).item() > 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("first", ["observation", "zero"])
def test_block_that_is_not_finite_keeps_its_history(bad, first):
    statistics, history = Statistics(first=first), History.start(BLOCKS)
    for row in dispersions()[:10]:
        history, smoothed, _ = statistics.update(history, column(*row))
    after, smoothed_after, scores = statistics.update(history, column(0.1, bad, 0.2, 0.3))
    assert all(new[1] == old[1] for new, old in zip(after, history, strict=True))
    assert all(new[0] != old[0] for new, old in zip(after, history, strict=True))
    assert smoothed_after[1] == smoothed[1]
    assert scores.isnan().tolist() == [False, True, False, False]
    assert abs(scores.nansum().item()) < 1e-12


def test_block_that_was_never_finite_starts_at_its_first_finite_observation():
    history, smoothed, _ = Statistics().update(History.start(2), column(math.nan, 1.0))
    assert smoothed[0].isnan()
    history, smoothed, scores = Statistics().update(history, column(0.5, 1.0))
    assert smoothed.tolist() == [0.5, 1.0]
    assert scores.isfinite().all()


def test_restart_forgets_the_moments_and_keeps_the_smoothing():
    statistics, history = Statistics(), History.start(BLOCKS)
    for row in dispersions()[:10]:
        history, _, _ = statistics.update(history, column(*row))
    restarted = history.restarted()
    assert torch.equal(restarted.average, history.average)
    assert torch.equal(restarted.observed, history.observed)
    assert not any(part.any() for part in (restarted.seen, restarted.mean, restarted.variance))


def test_update_leaves_the_given_history_alone():
    before = History.start(2)
    Statistics().update(before, column(1.0, 2.0))
    assert all((part == 0).all() for part in before)


def test_statistics_stay_in_float64_whatever_is_observed():
    history, smoothed, scores = Statistics().update(History.start(2), torch.tensor([0.1, 0.2], dtype=torch.float32))
    assert {t.dtype for t in (*history, smoothed, scores)} == {torch.float64}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.0}, r"decay must be in \[0, 1\)"),
        ({"decay": -0.1}, r"decay must be in \[0, 1\)"),
        ({"momentum": 0.0}, r"momentum must be in \(0, 1\]"),
        ({"momentum": 1.5}, r"momentum must be in \(0, 1\]"),
        ({"eps": -1e-8}, "eps must not be negative"),
        ({"decay": math.nan}, r"decay must be in \[0, 1\)"),
    ],
    ids=str,
)
def test_constants_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Statistics(**options)


@pytest.mark.parametrize("wrong", [{"first": "nought"}, {"running": "rolling"}])
def test_a_misspelt_option_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Statistics(**wrong)
