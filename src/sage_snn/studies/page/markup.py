"""HTML as small functions: whatever is not marked as markup is escaped."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

VOID = ("meta", "link", "br", "hr", "img")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; `class_` and `data_value` become class and data-value, None and False are left out."""
    written = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Children one after the other, escaped unless they are markup; None is nothing."""
    parts = (child if isinstance(child, Markup) else html.escape(str(child)) for child in children if child is not None)
    return Markup("".join(parts))


@dataclass(frozen=True)
class Column:
    """A column of a table: where its values stand, its heading, and how numbers are written."""

    key: str
    title: str
    form: str | None = None  # format specification of numbers; None: text
    hint: str | None = None


@dataclass(frozen=True)
class Cell:
    """A cell that reads one way, as text or markup, and sorts by a number; `kind` is a class of the page's style."""

    text: str
    value: float
    kind: str | None = None


def table(rows: Sequence[dict[str, Any]], columns: Sequence[Column], caption: str) -> Markup:
    """A table that sorts by a click or a key on its headings; wide ones scroll inside their own frame."""
    head = tag("tr", *(_heading(column) for column in columns))
    body = (_row(row, columns) for row in rows)
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", head),
        tag("tbody", *body),
        class_="sortable",
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def number(value: Any, form: str) -> str:
    """A number as read by people; a dash where there is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return "–"
    return format(value, form).replace("-", "−")


def interval(low: float, high: float, form: str) -> Cell:
    """Both ends of an interval, sorted by the lower."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return Cell("–", math.nan)
    return Cell(f"{number(low, form)} to {number(high, form)}", low)


def details(summary: str, *children: object, is_open: bool = False) -> Markup:
    """A section that opens on demand."""
    return tag("details", tag("summary", summary), *children, open=is_open)


def _heading(column: Column) -> Markup:
    button = tag("button", column.title, type="button", title=column.hint)
    return tag("th", button, scope="col", aria_sort="none", class_="number" if column.form else None)


def _row(row: dict[str, Any], columns: Sequence[Column]) -> Markup:
    cells = (_cell(row.get(column.key), column) for column in columns)
    return tag("tr", *cells, class_=row.get("class"))


def _cell(value: Any, column: Column) -> Markup:
    if isinstance(value, Markup):
        return tag("td", value)
    if isinstance(value, Cell):
        classes = " ".join(filter(None, ["number", value.kind]))
        return tag("td", value.text, class_=classes, data_value=value.value if math.isfinite(value.value) else "")
    if column.form is None:
        return tag("td", "" if value is None else value)
    value = value.item() if hasattr(value, "item") else value
    shown = number(value, column.form)
    return tag("td", shown, class_="number", data_value="" if shown == "–" else value)


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
