"""One HTML file that needs nothing beside it: style, script and the drawing library are written into it."""

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ...runs.folder import write_atomically
from .markup import Markup, join, tag

HERE = resources.files("sage_snn.studies.page")


def write_page(path: Path, title: str, lede: object, facts: object, sections: Sequence[Markup], foot: object) -> Path:
    """Write the page; sections are those of `section`."""
    body = [
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("h1", title), lede, facts),
        contents(sections),
        tag("main", *sections, id="content"),
        tag("footer", foot),
        _script(_plotly()),
        _script((HERE / "page.js").read_text(encoding="utf-8")),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup((HERE / "page.css").read_text(encoding="utf-8"))),
    ]
    page = tag("html", tag("head", *head), tag("body", *body), lang="en")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"<!doctype html>\n{page}\n".encode())
    return path


class Section(Markup):
    """A part of the page that the contents lead to."""

    name: str
    heading: str


def section(name: str, title: str, *children: object) -> Section:
    """A part of the page with its heading."""
    heading = tag("h2", title, id=f"{name}-title")
    made = Section(tag("section", heading, *children, id=name, aria_labelledby=f"{name}-title"))
    made.name, made.heading = name, title
    return made


def contents(sections: Sequence[Markup]) -> Markup:
    """Links to the sections."""
    named = [part for part in sections if isinstance(part, Section)]
    links = (tag("li", tag("a", part.heading, href=f"#{part.name}")) for part in named)
    return tag("nav", tag("ul", *links), class_="contents", aria_label="Contents")


def embedded(value: Any) -> Markup:
    """Data for the script; nothing in it can end its element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')


def _plotly() -> str:
    """The drawing library as plotly's Python package ships it."""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _script(source: str) -> Markup:
    return join([Markup("<script>"), Markup(source.replace("</script", "<\\/script")), Markup("</script>")])
