"""What may be said of policies: which are told from the baseline after the correction, and how many were tried."""

from collections.abc import Sequence

from ..page.findings import MINUS
from .entry import Difference, Entry, best_fixed


def verdicts(entries: Sequence[Entry], settings: Sequence[str]) -> list[str]:
    """A few sentences, from corrected p values alone; no order of means but that of fixed slopes."""
    others = [entry for entry in entries if not entry.is_baseline]
    baseline = next((entry.name for entry in entries if entry.is_baseline), None)
    if baseline is None or not others:
        return ["There is nothing to compare: a baseline and another policy are needed."]
    said = [_whole(others, baseline, len(settings))]
    if len(settings) > 1:
        said.append(_single(others, baseline))
    fixed = [entry for entry in entries if entry.is_fixed]
    if len(fixed) > 1 and (best := best_fixed(entries)) is not None:
        said.append(f"Of {len(fixed)} fixed slopes {best.name} has the highest mean{_reason(best)}.")
    return said


def correction_words(entries: Sequence[Entry], settings: Sequence[str]) -> str:
    """How many comparisons there are, and what is done about it."""
    whole = sum(entry.over_all.verdict != "no interval" for entry in entries)
    single = sum(one.verdict != "no interval" for entry in entries for one in entry.differences.values())
    counted = f"{whole} over all settings, {single} in single ones" if len(settings) > 1 else str(whole)
    return (
        "Above and below are t tests of the paired differences after Holm's correction for the number of comparisons "
        f"({counted}): the chance that one of them errs is at most one in twenty. Cannot tell: the test leaves zero "
        "possible, which does not show that there is no difference. Intervals hold 95 %, each for itself, and are "
        "not corrected: one that leaves out zero may still be judged as cannot tell."
    )


def _whole(others: Sequence[Entry], baseline: str, settings: int) -> str:
    tested = [entry for entry in others if entry.over_all.verdict != "no interval"]
    where = f"Over {settings} settings" if settings > 1 else "In this setting"
    if not tested:
        return f"{where}: nothing can be told from {baseline}, since an interval needs two seeds with a number."
    told = [
        f"{entry.name} is {entry.over_all.verdict} {baseline} {_by(entry.over_all)}"
        for entry in tested
        if entry.over_all.is_apart
    ]
    count = f"{len(tested)} {'policy' if len(tested) == 1 else 'policies'}"
    if not told:
        return f"{where}: cannot tell any of {count} from {baseline}."
    rest = len(tested) - len(told)
    return f"{where}: {'; '.join(told)}. {f'Cannot tell the other {rest} from it.' if rest else ''}".rstrip()


def _single(others: Sequence[Entry], baseline: str) -> str:
    cells = [(entry.name, title, one) for entry in others for title, one in entry.differences.items()]
    told = [f"{name} is {one.verdict} at {title} {_by(one)}" for name, title, one in cells if one.is_apart]
    return f"In single settings: {'; '.join(told) if told else f'cannot tell any policy from {baseline}'}."


def _by(difference: Difference) -> str:
    low, high = sorted((abs(difference.seen.low), abs(difference.seen.high)))
    return f"by {low:.2f} to {high:.2f} points"


def _reason(best: Entry) -> str:
    """Its difference to the baseline, and that a highest mean is no more than that."""
    if best.is_baseline:
        return ", the baseline itself"
    gain = MINUS.sub("−", f"{best.over_all.seen.mean:+.2f}")
    return f" ({gain}), {'and is told from it' if best.over_all.is_apart else 'which is not told from the baseline'}"
