"""Contestants take turns, so that whatever else the machine does meets them all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant, round by round."""

    seconds: tuple[float, ...]

    @property
    def minimum(self) -> float:
        """What it takes when nothing is in the way."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """What it usually takes."""
        return statistics.median(self.seconds)

    def minus(self, other: "Timing") -> float:
        """Median difference to another contestant in the same round."""
        return statistics.median(a - b for a, b in zip(self.seconds, other.seconds, strict=True))


def alternate(contestants: Mapping[str, Callable[[], object]], repetitions: int, calls: int = 1) -> dict[str, Timing]:
    """Time each in turn, `repetitions` times around, after one round to warm up.

    What takes milliseconds is called several times in a turn, or it would meet the caches that the others left.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(repetitions + 1):
        for name, run in contestants.items():
            started = time.perf_counter()
            for _ in range(calls):
                run()
            if round_number:
                seconds[name].append((time.perf_counter() - started) / calls)
    return {name: Timing(tuple(s)) for name, s in seconds.items()}
