"""What papers print of the systems: the paper of SAGE, the originals, and why they differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..paper.reported import TITLES, Original, Reported, originals_on, reported_on
from .entry import Entry

APART = (
    "Systems that were trained on fewer images, for fewer epochs or as smaller networks than in their papers compare "
    "with each other, not with the printed rows."
)


@dataclass(frozen=True)
class Published:
    """One system on one data set: what stands where, in words."""

    method: str
    data: str
    source: str
    paper: str
    original: str
    why: str


def published(entries: Sequence[Entry]) -> list[Published]:
    """A row per system and data set of which the paper prints a figure."""
    rows: dict[tuple[str, str], Published] = {}
    for entry in entries:
        for row in reported_on(entry.data):
            if row.method == entry.method:
                rows.setdefault((row.data, row.method), _published(row, entry.source))
    return list(rows.values())


def unprinted(entries: Sequence[Entry]) -> str:
    """The systems of which the paper prints nothing on these data, in words; empty if there are none."""
    printed = {(TITLES.get(entry.data), entry.method) for entry in entries} & {
        (row.data, row.method) for row in published(entries)
    }
    lacking = [entry for entry in entries if (TITLES.get(entry.data), entry.method) not in printed]
    names = dict.fromkeys(f"{entry.name} on {TITLES.get(entry.data, entry.data)}" for entry in lacking)
    return f"The paper of SAGE prints no figure of {', '.join(names)}." if names else ""


def _published(row: Reported, source: str) -> Published:
    originals = originals_on(row.data, row.method)
    agrees = any((original.network, original.top1) == (row.network, row.top1) for original in originals)
    why = "; ".join(filter(None, ["the accuracies agree" if agrees else "", row.caveat]))
    original = "; ".join(map(_words, originals)) or ("the same paper" if row.method == "SAGE" else "not known")
    return Published(row.method, TITLES[row.data], source, _words(row), original, why)


def _words(row: Reported | Original) -> str:
    """`92.24 (ResNet-20, T=32; its ANN 91.77)`."""
    where = ", ".join([row.network, *([f"T={row.time_steps}"] if row.time_steps else [])])
    note = f"; {row.note}" if isinstance(row, Original) and row.note else ""
    return f"{row.top1:.2f} ({where}{note})" if where or note else f"{row.top1:.2f}"
