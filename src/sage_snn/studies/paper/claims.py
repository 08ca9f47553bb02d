"""The paper's claims, each with what these runs say about it; verdicts follow from intervals, never from opinion."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from ..effects import Claim, Effect, Test, effect_of, effects, is_higher, judge, plain, with_policy
from ..labels import RECIPE
from ..results import RunResult, table
from .reported import ABSTRACT_GAIN, EPOCHS, NETWORK, claimed_gain
from .signal_claims import gini_is_flat, inference_is_unchanged, overhead_claims, quarter_keeps_most

__all__ = ["Claim", "claims"]

PAPER_STEPS = 4
GAIN, SIGNAL = f"{RECIPE}policy.gain", f"{RECIPE}policy.signal"
MOST_GAIN = 2.0  # the upper end of the abstract's "1-2 %"


def claims(source: Sequence[RunResult] | pd.DataFrame) -> list[Claim]:
    """Every claim with its verdict; from a table alone, those about signals and files are not tested."""
    runs = [] if isinstance(source, pd.DataFrame) else list(source)
    rows = source if isinstance(source, pd.DataFrame) else table(runs)
    if rows.empty:
        rows = pd.DataFrame(columns=["data", "policy", "label", "time_steps", "seed", "last_top1", "unusual"])
    scale = _scale(runs)
    gains = effects(rows, plain(rows, "sage"), plain(rows, "fixed"))
    return [
        _beats_fixed(gains, scale),
        _one_to_two_points(gains, scale),
        _gains_at_few_steps(gains, scale),
        _largest_at_four(gains, scale),
        _on_a_par_with_learnable(rows, scale),
        _narrowing_beats_broadening(rows, scale),
        _signal_matters(rows, scale),
        gini_is_flat(runs, scale),
        quarter_keeps_most(runs, scale),
        *overhead_claims(runs),
        inference_is_unchanged(runs),
    ]


def _beats_fixed(gains: Sequence[Effect], scale: str) -> Claim:
    tests = [is_higher(gain) for gain in gains if gain.time_steps == PAPER_STEPS]
    return judge(
        "SAGE is more accurate than a fixed slope at T=4", tests, "no sage and fixed runs at T=4", "difference", scale
    )


def _one_to_two_points(gains: Sequence[Effect], scale: str) -> Claim:
    """The interval leaves out zero and meets the range; possible as long as it meets it."""
    tests: list[Test] = []
    for gain in (gain for gain in gains if gain.time_steps == PAPER_STEPS):
        meets = gain.paired.low <= MOST_GAIN and gain.paired.high >= ABSTRACT_GAIN
        tests.append(Test(gain, meets and gain.paired.low > 0, meets))
    text = "SAGE gains 1 to 2 points of top-1 over a fixed slope (abstract)"
    return judge(text, tests, "no sage and fixed runs at T=4", "difference", scale)


def _gains_at_few_steps(gains: Sequence[Effect], scale: str) -> Claim:
    few = [gain for gain in gains if gain.time_steps <= PAPER_STEPS]
    text, missing = "SAGE gains at every T up to 4", "needs sage and fixed runs at T = 1, 2 and 4"
    if not {1, 2, 4} <= {gain.time_steps for gain in few}:
        return Claim(text, "not tested here", missing)
    return judge(text, [is_higher(gain) for gain in few], missing, "difference", scale)


def _largest_at_four(gains: Sequence[Effect], scale: str) -> Claim:
    """The gain at T=4 less that at another T, seed by seed."""
    tests: list[Test] = []
    for four in (gain for gain in gains if gain.time_steps == PAPER_STEPS):
        for other in gains:
            if other is four or (other.data, other.context) != (four.data, four.context):
                continue
            seeds = four.by_seed.index.intersection(other.by_seed.index)
            where = f"{four.data}, gain at T=4 against T={other.time_steps}"
            tests.append(is_higher(effect_of(where, list(four.by_seed[seeds] - other.by_seed[seeds]))))
    text = "SAGE's gain is largest at T=4"
    return judge(text, tests, "needs sage and fixed runs at T=4 and another T", "difference", scale)


def _on_a_par_with_learnable(rows: pd.DataFrame, scale: str) -> Claim:
    """On a par: the whole interval is closer to zero than the gain that the paper claims."""
    gains = effects(rows, plain(rows, "sage"), plain(rows, "learnable"))
    many = [effect for effect in gains if effect.time_steps in (8, 12)]
    text, missing = "SAGE is on a par with a learnable slope at T=8 and T=12", "needs sage and learnable runs at both"
    if len({effect.time_steps for effect in many}) < 2:
        return Claim(text, "not tested here", missing)
    tests: list[Test] = []
    for effect in many:
        low, high, margin = effect.paired.low, effect.paired.high, claimed_gain(effect.data)
        tests.append(Test(effect, -margin < low and high < margin, low < margin and high > -margin))
    claim = judge(text, tests, missing, "difference", scale)
    if claim.verdict == "not tested here":
        return claim
    margins = sorted({claimed_gain(effect.data) for effect in many})
    margin = " or ".join(f"{value:g}" for value in margins)
    reason = f"{claim.reason}; on a par means an interval within ±{margin} points, the gain that is claimed"
    return replace(claim, reason=reason)


def _narrowing_beats_broadening(rows: pd.DataFrame, scale: str) -> Claim:
    text = "where heads disagree, narrowing the surrogate (the equations) beats broadening it (the text)"
    missing = "needs sage runs with policy.gain 0.5 and -0.5"
    if GAIN not in rows:
        return Claim(text, "not tested here", missing)
    broaden = with_policy(rows, "policy.gain", [float(gain) == -0.5 for gain in rows[GAIN]])
    tests = [is_higher(effect) for effect in effects(rows, plain(rows, "sage"), broaden)]
    return judge(text, tests, missing, "difference", scale)


def _signal_matters(rows: pd.DataFrame, scale: str) -> Claim:
    text = "the disagreement of attention heads is what helps: SAGE beats the same law on a random or constant signal"
    missing = "needs sage runs with policy.signal random or constant"
    if SIGNAL not in rows:
        return Claim(text, "not tested here", missing)
    tests: list[Test] = []
    for control in ("random", "constant"):
        chosen = with_policy(rows, "policy.signal", [signal == control for signal in rows[SIGNAL]])
        for effect in effects(rows, plain(rows, "sage"), chosen):
            tests.append(is_higher(replace(effect, where=f"{effect.where} against {control}")))
    return judge(text, tests, missing, "difference", scale)


def _scale(runs: Sequence[RunResult]) -> str:
    """How far these runs are from the paper's; empty if they are like them."""
    told = {
        f"{r.model.title}, "
        f"{f'{r.train_images:,} images' if r.train_images else 'all images'} of {r.data}, {r.total_epochs} epochs"
        for r in (run.recipe for run in runs)
        if r.model.title != NETWORK or r.epochs < EPOCHS or r.train_images is not None
    }
    return f". Scale: {'; '.join(sorted(told))}; the paper's is {NETWORK}, {EPOCHS} epochs or more" if told else ""
