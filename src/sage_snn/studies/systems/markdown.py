"""The table of systems as Markdown, for a document."""

from collections.abc import Sequence

from .column import columns
from .entry import Entry
from .published import APART, published, unprinted
from .verdict import cautions, verdicts


def systems_markdown(entries: Sequence[Entry]) -> str:
    """Verdicts, the table, and what papers print, as on the page."""
    shown, printed = columns(entries), published(entries)
    rows = [[one.text(entry) for one in shown] for entry in entries]
    parts = [
        "\n".join(f"- {verdict}" for verdict in verdicts(entries)),
        " ".join(cautions(entries)),
        _table([one.title for one in shown], rows),
    ]
    if printed:
        headings = ["System", "Data", "The paper of SAGE prints", "The original prints", "Why they differ"]
        words = [[row.method, row.data, row.paper, row.original, row.why] for row in printed]
        parts += [APART] if any(entry.is_reduced for entry in entries) else []
        parts.append(_table(headings, words))
    parts.append(unprinted(entries))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")
