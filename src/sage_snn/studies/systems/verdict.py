"""What may be said of systems: which are apart by their intervals, and of which nobody can tell."""

from collections.abc import Sequence

from ..comparison import Estimate
from ..page.findings import by_chance
from ..paper.reported import TITLES
from .entry import Entry
from .pair import Pair, by_protocol, pairs

FEW = 3  # pairs up to which a sentence holds their intervals
BY = {"own": "each by its own recipe", "common": "all by the common recipe"}
WHOLE = (
    "Two systems are apart where the 95 % interval of their difference in top-1 after the last epoch, by Welch's t, "
    "leaves out zero. A system is its network, its T, its training and its conversion together: an interval says "
    "whether two wholes differ, not what in them does."
)


def verdicts(entries: Sequence[Entry]) -> list[str]:
    """A few sentences per data set and protocol, from the intervals alone; no order of means."""
    return [_verdict(group, pairs(group)) for group in by_protocol(entries)]


def cautions(entries: Sequence[Entry]) -> list[str]:
    """What a reader of the verdicts must know."""
    tested = sum(pair.is_tested for pair in pairs(entries))
    chance = by_chance(tested)
    return [WHOLE, *([f"{chance[:1].upper()}{chance[1:]}."] if tested > 1 else [])]


def _verdict(group: Sequence[Entry], compared: Sequence[Pair]) -> str:
    where = f"On {TITLES.get(group[0].data, group[0].data)}, {BY[group[0].protocol]}"
    if not compared:
        return f"{where}: only {group[0].name} was run, so there is nothing to compare."
    tested = [pair for pair in compared if pair.is_tested]
    if not tested:
        return f"{where}: cannot tell any two systems apart, since an interval needs two seeds of each with a number."
    told, unsure = ([pair for pair in tested if pair.is_apart is wanted] for wanted in (True, False))
    said = f"{where}: {_apart(told, len(tested)) if told else _none_apart(tested)}."
    if told and unsure:
        holds = "interval holds" if len(unsure) == 1 else "intervals hold"
        rest = f"the other {len(unsure)}, whose {holds} zero" if len(tested) > FEW else _intervals(unsure)
        said += f" Cannot tell of {rest}."
    lacking = len(compared) - len(tested)
    pairs_have = "pair has" if lacking == 1 else "pairs have"
    return f"{said} {lacking} {pairs_have} no interval, for want of seeds with a number." if lacking else said


def _apart(told: Sequence[Pair], tested: int) -> str:
    """Who is above whom, gathered by the upper; in the order of the study, not of means."""
    by_upper: dict[str, list[str]] = {}
    for pair in told:
        low, high = sorted((abs(pair.difference.low), abs(pair.difference.high)))
        by = f" by {low:.2f} to {high:.2f} points" if tested <= FEW else ""
        by_upper.setdefault(pair.upper.name, []).append(f"{pair.lower.name}{by}")
    above = "; ".join(f"{upper} is above {_listed(lower)}" for upper, lower in by_upper.items())
    pairs_are = "pair is" if tested == 1 else f"pairs {'is' if len(told) == 1 else 'are'}"
    return f"{len(told)} of {tested} {pairs_are} apart: {above}"


def _none_apart(tested: Sequence[Pair]) -> str:
    why = "the interval holds" if len(tested) == 1 else f"all {len(tested)} intervals hold"
    shown = f" ({_intervals(tested)})" if len(tested) <= FEW else ""
    return f"cannot tell any two systems apart, {why} zero{shown}"


def _intervals(unsure: Sequence[Pair]) -> str:
    return ", ".join(f"{p.first.name} and {p.second.name} {_signed(p.difference)}" for p in unsure)


def _signed(difference: Estimate) -> str:
    low, high = (f"{end:+.2f}".replace("-", "−") for end in (difference.low, difference.high))
    return f"[{low}, {high}]"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])
