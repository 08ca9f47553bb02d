"""A share of what `benchmarks/fuzz.py` does by the hundred thousand."""

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # whose scripts share files
import fuzz
import messages


@pytest.mark.slow
def test_bad_input_ends_well_or_in_an_error_of_the_users(tmp_path):
    told = fuzz.fuzz(tmp_path, 200)
    problems = {kept.parent.name: kept.read_text() for kept in tmp_path.glob("failed/*/problem.txt")}
    assert told == {"cases": 200, "failed": 0}, problems


class Careless:
    """Fails in every way."""

    def __init__(self, folder):
        pass

    def kind(self, number):
        return "careless"

    def case(self, number, scratch):
        (scratch / "input").write_text(str(number))
        return [
            lambda: 1 // 0,
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            lambda: (scratch / "owned").touch(),
            lambda: None,
            lambda: (scratch / "input").unlink(),
            lambda: (scratch / "input").write_text("of the program"),
            lambda: (scratch / "input").rename(scratch / "set-aside"),
        ][number]


def test_what_fails_is_noticed_and_kept_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "Fuzzer", Careless)
    assert fuzz.fuzz(tmp_path, 3) == {"cases": 3, "failed": 3}
    assert fuzz.fuzz(tmp_path, 4) == {"cases": 4, "failed": 3}
    assert fuzz.fuzz(tmp_path, 7) == {"cases": 7, "failed": 5}
    kept = {kept.parent.name: kept.read_text() for kept in tmp_path.glob("failed/*/problem.txt")}
    assert "ZeroDivisionError" in kept["0"]
    assert kept["1"] == "the process ended with -9"
    assert kept["2"] == "code of a file was executed"
    assert kept["4"] == kept["5"] == "a file was lost or written over"
    assert (tmp_path / "failed" / "1" / "input").read_text() == "1"


def test_a_kind_may_be_chosen_and_keeps_its_cases(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "Fuzzer", Careless)
    monkeypatch.setattr(Careless, "kind", lambda self, number: ("odd", "even")[number % 2 == 0])
    assert fuzz.fuzz(tmp_path, 7, kinds=["odd"]) == {"cases": 3, "failed": 2}
    assert sorted(kept.name for kept in (tmp_path / "failed").iterdir()) == ["1", "5"]


def stop(code, said="", typed=()):
    made = SystemExit(code)
    made.said, made.typed = said, typed
    return made


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (stop(0, "a table\n" * 100), None),
        (stop(1, "a report\n" * 100), None),
        (stop(2, "Usage: sage-snn\nTry 'sage-snn --help' for help.\n"), None),
        (stop(2, "Option '--diff' requires 2 arguments."), None),
        (stop(2, "no"), "no usage is told"),
        (stop("error: it is broken"), "no cure is told"),
        (stop("error: mend it\n" * 13), "13 lines of up to 14 letters"),
        (stop("error: mend " + "x" * 3000, typed=["x" * 3000]), None),
        (stop("error: mend " + "x" * 3000), "1 lines of up to 3012 letters"),
        (stop(1, "Traceback (most recent call last)"), "a traceback for people"),
    ],
)
def test_a_command_owes_people_a_cure_and_an_end(error, told):
    assert messages.untold(error, "command") == told


def test_a_data_file_owes_people_its_name_too():
    assert messages.untold(ValueError("copy it again"), "events") == "the file is not named"
    assert messages.untold(ValueError("a.aedat: copy it again"), "events") is None
