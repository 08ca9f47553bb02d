"""Columns of the table of systems: what each tells of an entry, for the page and for Markdown alike."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..comparison import Estimate
from ..page.markup import number
from ..paper.reported import TITLES
from ..progress import duration
from .entry import Entry


@dataclass(frozen=True)
class Told:
    """A heading, how an entry reads below it, and the number that it sorts by; None for words."""

    title: str
    text: Callable[[Entry], str]
    value: Callable[[Entry], float] | None = None
    hint: str | None = None


def columns(entries: Sequence[Entry]) -> list[Told]:
    """Of a table of these entries; systems and data have a column where it tells something."""
    is_named_otherwise = any(entry.system != entry.name for entry in entries)
    of = "mean over seeds, and in brackets its 95 % interval by Student's t; none for one seed"
    last = Told("Last top-1 (%)", lambda e: _estimate(e.last_top1), lambda e: e.last_top1.mean, of)
    best = Told(
        "Best top-1 (%)", lambda e: _estimate(e.best_top1), lambda e: e.best_top1.mean, f"{of}; chosen on test images"
    )
    return [
        Told("Label" if is_named_otherwise else "System", lambda e: e.name),
        *([Told("System", lambda e: e.system)] if is_named_otherwise else []),
        Told("Protocol", lambda e: e.protocol, hint="own: the system's recipe; common: the one that all share"),
        *([Told("Data", lambda e: TITLES.get(e.data, e.data))] if len({e.data for e in entries}) > 1 else []),
        Told("Network", lambda e: e.network),
        Told("Parameters", lambda e: number(e.parameters, ",d"), lambda e: e.parameters),
        Told("T", lambda e: str(e.time_steps), lambda e: e.time_steps),
        Told("Seeds", lambda e: str(len(e.last)), lambda e: len(e.last)),
        last,
        best,
        Told("Firing rate (%)", lambda e: number(100 * e.firing_rate, ".2f"), lambda e: e.firing_rate),
        Told("Synaptic operations (M)", lambda e: number(e.sops / 1e6, ",.2f"), lambda e: e.sops, "millions per image"),
        Told("Energy (µJ)", lambda e: number(e.energy_uj, ",.2f"), lambda e: e.energy_uj, "per image, as estimated"),
        Told("Training time", lambda e: _time(e.seconds), lambda e: e.seconds, "of a run, all stages; mean over seeds"),
        Told("Training", lambda e: e.training),
    ]


def _estimate(seen: Estimate) -> str:
    if math.isnan(seen.low):
        return number(seen.mean, ".2f")
    return f"{number(seen.mean, '.2f')} [{number(seen.low, '.2f')}, {number(seen.high, '.2f')}]"


def _time(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else "–"
