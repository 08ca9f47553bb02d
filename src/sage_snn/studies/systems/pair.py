"""Two systems of one protocol: whether their seeds tell them apart."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..comparison import Estimate, apart
from .entry import Entry


@dataclass(frozen=True, eq=False)
class Pair:
    """The difference of the first to the second in last-epoch accuracy, with its interval."""

    first: Entry
    second: Entry
    difference: Estimate

    @property
    def is_tested(self) -> bool:
        """Is there an interval?"""
        return not math.isnan(self.difference.low)

    @property
    def is_apart(self) -> bool:
        """Does the interval leave out zero?"""
        return self.is_tested and not self.difference.low <= 0 <= self.difference.high

    @property
    def upper(self) -> Entry:
        """The one whose mean is higher; it says something only of a pair that is apart."""
        return self.first if self.difference.mean > 0 else self.second

    @property
    def lower(self) -> Entry:
        """The other."""
        return self.second if self.upper is self.first else self.first

    @property
    def verdict(self) -> str:
        """What the interval allows one to say."""
        if not self.is_tested:
            return "no interval"
        return f"{self.upper.name} above" if self.is_apart else "cannot tell"


def pairs(entries: Sequence[Entry]) -> list[Pair]:
    """Every two systems of the same data and protocol."""
    return [
        Pair(first, second, apart(list(first.last), list(second.last)))
        for group in by_protocol(entries)
        for first, second in itertools.combinations(group, 2)
    ]


def by_protocol(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """The entries of each data set and protocol."""
    for key in dict.fromkeys((entry.data, entry.protocol) for entry in entries):
        yield [entry for entry in entries if (entry.data, entry.protocol) == key]
