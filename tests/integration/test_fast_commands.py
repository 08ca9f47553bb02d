"""Commands that only read text answer at once: nothing of size is imported for them."""

import subprocess
import sys

import pytest

from sage_snn.recipes import load_recipe
from sage_snn.runs import RunFolder

HEAVY = {"torch", "lightning", "timm", "torchvision", "pandas", "matplotlib", "scipy", "spikingjelly", "sklearn", "ray"}


def heavy_modules(*command, cwd):
    code = (
        "import sys\n"
        "from sage_snn.cli import main\n"
        f"sys.argv = ['sage-snn', *{list(map(str, command))!r}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print('\\nloaded:', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=120)
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["recipes"],
        ["recipes", "cifar10"],
        ["recipes", "--diff", "cifar10", "imagenet200"],
        ["study", "--help"],
        ["study", "list"],
        ["study", "status", "table1-small"],
    ],
    ids=" ".join,
)
def test_a_command_that_only_reads_imports_nothing_of_size(command, tmp_path):
    assert heavy_modules(*command, cwd=tmp_path) == set()


def test_runs_and_arrays_are_compared_without_anything_of_size(tmp_path):
    (tmp_path / "own.npz").write_bytes(b"arrays")
    recipe = load_recipe("digits", {"data": "arrays", "data_dir": str(tmp_path / "own.npz"), "loss": "tet"})
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").write_recipe(recipe, {})
    assert heavy_modules("recipes", "--diff", "run", "digits", cwd=tmp_path) == set()


@pytest.mark.parametrize("room", ["data", "recipes", "runs", "training", "studies"])
def test_every_public_name_of_a_room_exists_and_entering_it_is_free(room):
    code = f"""
import sys
import sage_snn.{room} as room
print(*{HEAVY!r} & {{name.partition(".")[0] for name in sys.modules}})
assert set(room.__all__) <= set(dir(room))
for name in room.__all__:
    getattr(room, name)
try:
    room.nothing_of_the_kind
except AttributeError as error:
    assert "has no attribute 'nothing_of_the_kind'" in str(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
