"""The table of systems on a page."""

from collections.abc import Sequence

from ..page.document import Section, section
from ..page.markup import Cell, Column, Markup, details, interval, number, table, tag
from ..paper.reported import TITLES
from .column import columns
from .entry import Entry
from .pair import Pair, pairs
from .published import APART, published, unprinted
from .verdict import cautions, verdicts

COUNTED = (
    "Firing rate, synaptic operations and energy are per image of the test set, counted where a recipe asks for it "
    "(observe.activity). The best epoch is chosen on the test images and therefore flatters every system."
)


def systems_section(entries: Sequence[Entry], told: Sequence[Markup] = ()) -> Section:
    """What may be said of the systems, the table of what they reached and cost, and what papers print of them."""
    compared = pairs(entries)
    return section(
        "systems",
        "Systems",
        *told,
        tag("ul", *(tag("li", verdict) for verdict in verdicts(entries)), class_="said"),
        *(tag("p", caution, class_="note") for caution in cautions(entries)),
        tag("div", _table(entries), class_="systems"),
        tag("p", COUNTED, " The same as Markdown: ", tag("a", "systems.md", href="systems.md"), ".", class_="note"),
        details(f"All pairs ({len(compared)})", _pairs_table(compared)) if compared else None,
        tag("h3", "What papers print of these systems"),
        _printed(entries),
    )


def _table(entries: Sequence[Entry]) -> Markup:
    shown = columns(entries)
    rows = [
        {one.title: Cell(_kept(one.text(entry)), one.value(entry)) if one.value else one.text(entry) for one in shown}
        for entry in entries
    ]
    headings = [Column(one.title, one.title, one.value and ".2f", one.hint) for one in shown]
    data = ", ".join(dict.fromkeys(TITLES.get(entry.data, entry.data) for entry in entries))
    return table(rows, headings, f"Systems as measured here on {data}")


def _kept(text: str) -> str:
    """An interval stays on one line."""
    return text.replace(", ", ",\N{NO-BREAK SPACE}")


def _pairs_table(compared: Sequence[Pair]) -> Markup:
    rows = [
        {"first": pair.first.name, "second": pair.second.name, "protocol": pair.first.protocol}
        | {"data": TITLES.get(pair.first.data, pair.first.data), "verdict": pair.verdict}
        | {"difference": Cell(number(pair.difference.mean, "+.2f"), pair.difference.mean)}
        | {"interval": interval(pair.difference.low, pair.difference.high, "+.2f")}
        for pair in compared
    ]
    headings = [
        Column("first", "First"),
        Column("second", "Second"),
        Column("protocol", "Protocol"),
        Column("data", "Data"),
        Column("difference", "Difference", "+.2f", "of the first to the second, last epoch, percentage points"),
        Column("interval", "95 % interval", "+.2f", "of the difference, by Welch's t"),
        Column("verdict", "Verdict"),
    ]
    return table(rows, headings, "Pairs of the same protocol. Differences in percentage points of last top-1.")


def _printed(entries: Sequence[Entry]) -> Markup:
    rows = [vars(row) for row in published(entries)]
    headings = [
        Column("method", "System"),
        Column("data", "Data"),
        *([Column("source", "By")] if any(row["source"] for row in rows) else []),
        Column("paper", "The paper of SAGE prints"),
        Column("original", "The original prints"),
        Column("why", "Why they differ"),
    ]
    whole = table(rows, headings, "Top-1 in percent, as printed") if rows else None
    is_apart = bool(rows) and any(entry.is_reduced for entry in entries)
    return tag(
        "div",
        tag("p", APART) if is_apart else None,
        whole,
        tag("p", lacking, class_="note") if (lacking := unprinted(entries)) else None,
        class_="printed",
    )
