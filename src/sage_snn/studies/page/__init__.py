"""The page of a report: HTML, style and script, all in one file."""

from .document import write_page

__all__ = ["write_page"]
