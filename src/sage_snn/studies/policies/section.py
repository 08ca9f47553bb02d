"""The table of policies on a page."""

import math
from collections.abc import Sequence
from typing import Any

from ..comparison import Estimate
from ..page.document import Section, section
from ..page.markup import Cell, Column, Markup, details, interval, join, number, table, tag
from .entry import Difference, Entry
from .verdict import correction_words, verdicts

MARKS = {"above": "supported", "below": "refuted", "cannot tell": "open", "no interval": "untested"}
TIME = "seconds of training as a multiple of the baseline's, paired by seed and setting; the median"
MEMORY = "peak of the process, more than the baseline's, paired by seed and setting; the median"


def policies_section(entries: Sequence[Entry], told: Sequence[Markup] = ()) -> Section:
    """What may be said, a line per policy, and every comparison with its numbers."""
    titles = settings_of(entries)
    count = sum(len(entry.differences) for entry in entries)
    return section(
        "policies",
        "Policies",
        *told,
        tag("ul", *(tag("li", verdict) for verdict in verdicts(entries, titles)), class_="said"),
        tag("div", _table(entries, titles), class_="policies"),
        tag("p", correction_words(entries, titles), class_="note"),
        details(f"Every comparison ({count})", _comparisons(entries)) if count else None,
    )


def settings_of(entries: Sequence[Entry]) -> list[str]:
    """Titles of the scenes, in their order."""
    return list(dict.fromkeys(title for entry in entries for title in entry.top1))


def _table(entries: Sequence[Entry], titles: Sequence[str]) -> Markup:
    several = len(titles) > 1
    mean = "mean over the settings in which it was run, seed by seed"
    columns = [
        Column("name", "Policy"),
        Column("verdict", "Verdict", hint="after Holm's correction" + (", over all settings" if several else "")),
        *([Column("over_all", "All settings", "+.2f", mean)] if several else []),
        *(Column(f"at {title}", _kept(title), "+.2f", "paired difference, and its 95 % interval") for title in titles),
        Column("time", "Time", ".2f", TIME),
        Column("memory", "Memory (MB)", "+.0f", MEMORY),
        Column("moved", "What moved", hint="lowest to highest value over blocks, steps, seeds and settings"),
    ]
    baseline = next((entry.name for entry in entries if entry.is_baseline), "the baseline")
    caption = (
        f"Paired differences to {baseline} in top-1 after the last epoch, percentage points; its own line has its "
        "top-1 in percent. Bold: told from zero after the correction."
    )
    return table([_line(entry, titles) for entry in entries], columns, caption)


def _line(entry: Entry, titles: Sequence[str]) -> dict[str, Any]:
    cost = {"time": Cell(_times(entry.time_ratio), entry.time_ratio), "memory": entry.memory_mb, "moved": entry.moved}
    if entry.is_baseline:
        own = {f"at {title}": Cell(_top1(entry.top1.get(title)), math.nan) for title in titles}
        return {"name": entry.name, "verdict": "the baseline", "class": "measured"} | own | cost
    cells = {f"at {title}": _cell(entry.differences.get(title)) for title in titles}
    cells["over_all"] = _cell(entry.over_all)
    return {"name": entry.name, "verdict": _mark(entry.over_all)} | cells | cost


def _comparisons(entries: Sequence[Entry]) -> Markup:
    rows = [
        {"name": entry.name, "where": title, "n": one.seen.n, "top1": entry.top1[title].mean, "p": one.corrected}
        | {"difference": one.seen.mean, "interval": interval(one.seen.low, one.seen.high, "+.2f")}
        | {"verdict": _mark(one)}
        for entry in entries
        for title, one in entry.differences.items()
    ]
    columns = [
        Column("name", "Policy"),
        Column("where", "Setting"),
        Column("n", "Seeds", "d"),
        Column("top1", "Top-1 (%)", ".2f", "mean over seeds, last epoch"),
        Column("difference", "Difference", "+.2f", "paired with the baseline by seed"),
        Column("interval", "95 % interval", "+.2f", "of the difference, by Student's t; not corrected"),
        Column("p", "p after Holm", ".3f", "of the paired t test, corrected for all comparisons of this table"),
        Column("verdict", "Verdict"),
    ]
    return table(rows, columns, "Every policy in every setting")


def _cell(one: Difference | None) -> Cell:
    """The mean, and its interval below it."""
    if one is None or not one.seen.n:
        return Cell("–", math.nan)
    seen = one.seen
    ends = [number(end, "+.2f") for end in (seen.low, seen.high)]
    below = None if math.isnan(seen.low) else tag("small", f"[{', '.join(ends)}]")
    return Cell(join([number(seen.mean, "+.2f"), below]), seen.mean, "apart" if one.is_apart else None)


def _kept(title: str) -> str:
    """`T = 2` stays on one line."""
    return title.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _mark(one: Difference) -> Markup:
    return tag("span", one.verdict, class_=f"verdict {MARKS[one.verdict]}")


def _top1(seen: Estimate | None) -> str:
    return "–" if seen is None else f"{number(seen.mean, '.2f')} %"


def _times(ratio: float) -> str:
    return f"{number(ratio, '.2f')} ×" if math.isfinite(ratio) else "–"
