"""A share of what `benchmarks/fuzz.py` does by the hundred thousand."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

path = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
spec = importlib.util.spec_from_file_location("fuzz", path)
fuzz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzz)


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
