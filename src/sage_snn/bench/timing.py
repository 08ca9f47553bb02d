"""Contestants take turns, so that whatever else the machine does meets them all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

ON_CPU, ON_DEVICE = 1, 3  # rounds to warm up: on a device kernels are compiled, and libraries choose theirs


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
    """Time each in turn, `repetitions` times around, after the rounds to warm up, on the default device.

    What takes milliseconds is called several times in a turn, or it would meet the caches that the others left.
    """
    device = torch.get_default_device()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ON_CPU if device.type == "cpu" else ON_DEVICE):
        for run in contestants.values():
            _seconds(run, calls, device)
    for _ in range(repetitions):
        for name, run in contestants.items():
            seconds[name].append(_seconds(run, calls, device) / calls)
    return {name: Timing(tuple(s)) for name, s in seconds.items()}


def _seconds(run: Callable[[], object], calls: int, device: torch.device) -> float:
    """By the clock of the host, or by events on the device, which works behind it."""
    if device.type == "cpu":
        started = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - started
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
