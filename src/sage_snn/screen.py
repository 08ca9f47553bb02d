"""Between a terminal and the commands: what is typed, and text from files, which is read and does nothing else."""

import io
import os
import sys
import unicodedata
from collections.abc import Iterable

from rich.box import Box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

# A rule below the head and nothing else: the same on a terminal, in a pipe and in the log of a CI job.
PLAIN = Box("    \n    \n -- \n    \n -- \n -- \n    \n    \n", ascii=True)
ENDLESS = 10_000  # columns of what is no terminal: a log can be scrolled, and `cut` and `grep` want whole lines


def shown(text: object) -> str:
    """The text with control and formatting characters, other than line ends and tabs, as `\\x1b`: they move cursors."""
    return "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\n\t" else letter
        for letter in str(text)
    )


def cell(text: object) -> Text:
    """The same for a table, in which square brackets mean nothing."""
    return Text(shown(text))


def sheet(*columns: str | Column, title: object = None) -> Table:
    """An empty table that reads well in eighty columns: a head, a rule, and two blanks between columns."""
    head = None if title is None else cell(title)
    look = {"box": PLAIN, "show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}
    return Table(*columns, title=head, title_justify="left", **look)


def console() -> Console:
    """As wide as the terminal, or as `COLUMNS` says; elsewhere no line is folded."""
    found = Console()
    return found if found.is_terminal or found.is_jupyter or "COLUMNS" in os.environ else Console(width=ENDLESS)


def arguments(words: Iterable[str]) -> list[str]:
    """What was typed, with the home folder in `--out=~/runs`: shells see a tilde only where a word begins."""
    return [_at_home(word) if word.startswith("--") else word for word in words]


def _at_home(word: str) -> str:
    option, equals, value = word.partition("=")
    return f"{option}{equals}{os.path.expanduser(value)}"


def speak_to_any_terminal() -> None:
    """Letters that a terminal's encoding lacks are written as `\\xb5`, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
