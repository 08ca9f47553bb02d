import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sage_snn.screen import arguments, cell, shown


def test_text_cannot_move_the_cursor_nor_hide():
    assert shown("a\x1b]0;title\x07b\rc") == r"a\x1b]0;title\x07b\rc"
    assert shown("one\ntwo\tthree ü 漢") == "one\ntwo\tthree ü 漢"
    assert shown("abc\u202ecba") == r"abc\u202ecba"
    assert shown("\udce9") == r"\udce9"


def test_a_cell_shows_square_brackets_as_they_are():
    table, out = Table("name"), io.StringIO()
    table.add_row(cell("[/red]x[bold]\x1b[31m"))
    Console(file=out, width=60).print(table)
    assert r"[/red]x[bold]\x1b[31m" in out.getvalue()


def test_a_tilde_after_an_equals_sign_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    typed = ["train", "--out=~/runs", "--out", "~/x", "data_dir=~/d", "--out=a~b", "--quick", "~/recipe.yaml"]
    assert arguments(typed) == [word.replace("--out=~", "--out=/home/me") for word in typed]


def test_a_terminal_without_the_letter_gets_its_number():
    code = "from sage_snn.screen import speak_to_any_terminal as speak; speak(); print('µ \\udce9')"
    source = str(Path(__file__).parents[1] / "src")
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": source, "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "\\xb5 \\udce9\n"
