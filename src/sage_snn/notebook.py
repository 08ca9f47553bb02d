"""Between a notebook and what is shown in it: tables whose text does nothing but be read."""

import io
from collections.abc import Iterable, Sequence
from html import escape
from importlib.util import find_spec

from rich.console import Console

from .screen import shown

COLUMNS = 110  # of text in a notebook's cell


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "", details: str = "") -> str:
    """A table with a caption above it, and details that open on a click."""
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>" for row in rows)
    below = f"<details><summary>details</summary><pre>{_text(details)}</pre></details>" if details else ""
    return f"<p>{_text(caption)}</p><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{below}"


class ShownInNotebooks:
    """What rich can print, a notebook shows as the same text."""

    def _repr_html_(self) -> str:
        drawn = io.StringIO()
        Console(file=drawn, width=COLUMNS, force_jupyter=False).print(self)
        return f"<pre>{_text(drawn.getvalue())}</pre>"


def is_live(console: Console) -> bool:
    """Can a bar move there? On a terminal, and in a notebook that has ipywidgets; elsewhere lines are printed."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def _text(value: object) -> str:
    return escape(shown(value))
