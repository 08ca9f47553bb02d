"""What may be said of systems: which are apart by their intervals, and of which nobody can tell."""

from collections.abc import Sequence

from ..page.findings import by_chance
from ..paper.reported import TITLES
from .entry import Entry
from .pair import Pair, by_protocol, pairs

NAMED = 6  # pairs that a sentence names
BY = {"own": "each by its own recipe", "common": "all by the common recipe"}
WHOLE = (
    "A system is its network, its T, its training and its conversion together: an interval says whether two wholes "
    "differ, not what in them does."
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
    told, open_ = [pair for pair in tested if pair.is_apart], [pair for pair in tested if not pair.is_apart]
    if not told:
        count = f"all {len(tested)} intervals of differences hold" if len(tested) > 1 else "the interval holds"
        said = f"{where}: cannot tell any two systems apart, {count} zero ({_listed([_unsure(p) for p in open_])})."
    else:
        one = "pair is" if len(tested) == 1 else f"pairs {'is' if len(told) == 1 else 'are'}"
        above = _listed([_above(pair) for pair in told])
        said = f"{where}: {len(told)} of {len(tested)} {one} apart: {above}."
        said += f" Cannot tell: {_listed([_unsure(pair) for pair in open_])}." if open_ else ""
    without = _listed([_two(pair) for pair in compared if not pair.is_tested])
    return f"{said} No interval, for want of seeds with a number: {without}." if without else said


def _above(pair: Pair) -> str:
    low, high = sorted((abs(pair.difference.low), abs(pair.difference.high)))
    return f"{pair.upper.name} is above {pair.lower.name} by {low:.2f} to {high:.2f} points"


def _unsure(pair: Pair) -> str:
    low, high = (f"{end:+.2f}".replace("-", "−") for end in (pair.difference.low, pair.difference.high))
    return f"{_two(pair)}, {low} to {high}"


def _two(pair: Pair) -> str:
    return f"{pair.first.name} and {pair.second.name}"


def _listed(told: Sequence[str]) -> str:
    more = f"; and {len(told) - NAMED} more" if len(told) > NAMED else ""
    return "; ".join(told[:NAMED]) + more
