"""How many threads a run computes with: bits depend on it, and speed on whether the cores are free."""

import os
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from ..data.loader import usable_cores

_LOOKS, _SECONDS_BETWEEN = 5, 0.02


class Threads(NamedTuple):
    """Their number, and why it is that in words; no reason where nothing stands against using all cores."""

    number: int
    reason: str = ""

    def __str__(self) -> str:
        counted = f"{self.number} thread{'s' * (self.number > 1)}"
        return f"{counted}: {self.reason}" if self.reason else counted


def choose_threads(
    *, recipe: int | None, before: int | None, environment: str | None, most: int, cores: int, busy: float
) -> Threads:
    """The recipe's number, else that of the run to go on with, else OMP_NUM_THREADS, else as many as cores are free.

    `most` is what torch would take, `busy` how many of the cores others keep busy: two threads that share a core
    wait for each other at every step, and are many times slower than one.
    """
    if recipe is not None:
        return Threads(recipe)
    if before is not None:
        return Threads(before, "as the run began")
    if environment is not None and environment.isdecimal() and int(environment) > 0:
        return Threads(min(int(environment), cores), "OMP_NUM_THREADS")
    most = max(1, min(most, cores))
    free = max(1, min(most, cores - round(busy)))
    if free == most:
        return Threads(most)
    return Threads(free, "the other core is busy" if cores == 2 else f"{cores - free} of {cores} cores are busy")


def threads_here(recipe: int | None, before: int | None) -> Threads:
    """The choice for this process and now."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return choose_threads(
        recipe=recipe,
        before=before,
        environment=os.environ.get("OMP_NUM_THREADS"),
        most=torch.get_num_threads(),
        cores=max(1, usable_cores() // ranks),
        busy=busy_cores(),
    )


@cache  # once a process: at the next run of a study, the load would be its own
def busy_cores() -> float:
    """How many of the cores that this process may use are kept busy by others."""
    if not hasattr(os, "getloadavg"):
        return 0.0
    load = os.getloadavg()[0]
    # A run that has just ended is in the mean of the last minute still, and what wakes up for a moment is in one look.
    running = [now for _ in range(_LOOKS) if (now := _running_now()) is not None]
    return min(load, median(running) if running else load) * usable_cores() / (os.cpu_count() or 1)


def _running_now() -> int | None:
    """Threads of others that run or want to at this moment, where the system tells."""
    time.sleep(_SECONDS_BETWEEN)
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1  # this one reads
    except (OSError, ValueError, IndexError):
        return None
