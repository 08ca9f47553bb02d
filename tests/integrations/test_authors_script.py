"""The changes of docs/adopt.md to the authors' script, applied as they stand there and run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "adopt.md").read_text(encoding="utf-8")
OPTIONS = {
    "time_step": 2,
    "layer": 2,
    "dim": 16,
    "num_heads": 2,
    "patch_size": 4,
    "mlp_ratio": 4,
    "num_classes": 10,
    "img_size": 16,
    "batch_size": 4,
    "val_batch_size": 4,
    "opt": "adamw",
    "lr": "5e-3",  # as PyYAML reads the authors' file; argparse makes a number of it
    "sched": "cosine",
    "epochs": 2,
    "warmup_epochs": 0,
    "cooldown_epochs": 0,
}
pytestmark = pytest.mark.slow


def hunks(name):
    """(what stands behind @@, lines before, lines after) of every change that the page names for a file."""
    (diff,) = re.findall(rf"^```diff {re.escape(name)}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for hunk in re.split(r"^@@ ", diff, flags=re.MULTILINE)[1:]:
        title, *lines = hunk.splitlines()
        yield title, [x[1:] for x in lines if x[0] in " -"], [x[1:] for x in lines if x[0] in " +"]


def changed(text, name, but=None):
    """The file with every change of the page, but the one with that title."""
    for title, before, after in hunks(name):
        if title != but:
            old, new = ("\n".join(["", *lines, ""]) for lines in (before, after))
            assert text.count(old) == 1, f"{before} stands {text.count(old)} times in {name}"
            text = text.replace(old, new)
    return text


def our_model():
    (code,) = re.findall(r"^```python no-run\n(# model\.py\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return code


def write(folder, train, model):
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(train)
    (folder / "model.py").write_text(model)
    (folder / "cifar10.yml").write_text(yaml.safe_dump(OPTIONS))


def run(folder, *options):
    path = {"PYTHONPATH": str(HERE.parent / "models"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py", "--output", "runs", *options]
    return subprocess.run(command, cwd=folder, env=os.environ | path, capture_output=True, text=True)


TRAIN, MODEL = ((HERE / f"authors_{name}.py").read_text(encoding="utf-8") for name in ("train", "model"))
WAYS = {"ours": our_model, "theirs": lambda: changed(MODEL, "model.py")}


@pytest.fixture(scope="module", params=WAYS)
def trained(request, tmp_path_factory):
    """The folder of a whole run, and the options it had: one way with the scaler, the other without."""
    folder = tmp_path_factory.mktemp(request.param)
    options = ["--amp", "--model-ema"] if request.param == "ours" else []
    write(folder, changed(TRAIN, "train.py"), WAYS[request.param]())
    done = run(folder, "--experiment", "whole", *options)
    assert done.returncode == 0, done.stderr
    return folder, options


def state(folder, name, epoch):
    return torch.load(folder / "runs" / name / f"sage-{epoch}.pt", weights_only=True)


def test_the_script_trains_with_moving_slopes(trained):
    first, last = (state(trained[0], "whole", epoch) for epoch in (0, 1))
    assert (first["steps"], last["steps"]) == (2, 4)
    assert any((slopes != 4).any() for slopes in (first["slopes"], last["slopes"]))
    assert not torch.equal(first["slopes"], last["slopes"])


def test_a_resumed_run_goes_on_to_the_same_bits(trained):
    folder, options = trained
    done = run(folder, "--experiment", "rest", "--resume", "runs/whole/checkpoint-0.pth.tar", *options)
    assert done.returncode == 0, done.stderr
    assert not (folder / "runs" / "rest" / "sage-0.pt").exists()
    for part in ("steps", "slopes", "history", "smoothed", "zscores"):
        rest, whole = (state(folder, name, 1)[part] for name in ("rest", "whole"))
        torch.testing.assert_close(rest, whole, rtol=0, atol=0)
    whole, rest = (
        torch.load(folder / "runs" / name / "last.pth.tar", weights_only=False)["state_dict"]
        for name in ("whole", "rest")
    )
    torch.testing.assert_close(rest, whole, rtol=0, atol=0)


MENDS = [(name, title) for name in ("train.py", "model.py") for title, *_ in hunks(name) if title.startswith("else ")]


@pytest.mark.parametrize(("name", "title"), MENDS)
def test_without_a_change_the_script_fails_as_the_page_says(tmp_path, name, title):
    train = changed(TRAIN, "train.py", but=title if name == "train.py" else None)
    model = changed(MODEL, "model.py", but=title if name == "model.py" else None)
    write(tmp_path, train, model)
    done = run(tmp_path)
    assert (done.returncode == 0) == ("Warning" in title), done.stderr
    assert title.removeprefix("else ") in done.stderr


def test_the_script_as_it_is_fails_at_its_first_foreign_import(tmp_path):
    write(tmp_path, TRAIN, MODEL)
    done = run(tmp_path)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'spikingjelly.clock_driven'"
