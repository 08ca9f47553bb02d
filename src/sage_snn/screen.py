"""Between a terminal and the commands: what is typed, and text from files, which is read and does nothing else."""

import io
import os
import sys
import unicodedata
from collections.abc import Iterable

from rich.text import Text


def shown(text: object) -> str:
    """The text with control and formatting characters, other than line ends and tabs, as `\\x1b`: they move cursors."""
    return "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\n\t" else letter
        for letter in str(text)
    )


def cell(text: object) -> Text:
    """The same for a table, in which square brackets mean nothing."""
    return Text(shown(text))


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
