import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_says_what_it_did(example, tmp_path):
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "slope" in done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(example):
    assert len(example.read_text().splitlines()) < 60


def test_all_five_examples_are_there():
    names = {path.stem for path in EXAMPLES}
    assert {"own_loop", "new_signal", "other_architecture", "ddp", "lightning_trainer"} <= names
