import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tiny import TINY

from sage_snn.cli import main
from sage_snn.recipes import POLICIES
from sage_snn.runs import RunFolder
from sage_snn.studies.study import load_study
from sage_snn.training import train


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def sage_snn(capsys, monkeypatch):
    """Runs a command in this process, as the installed script would."""

    def run_command(*args):
        monkeypatch.setattr(sys, "argv", ["sage-snn", *map(str, args)])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        code = stop.value.code
        return Done(1, out.out, out.err + code) if isinstance(code, str) else Done(code or 0, out.out, out.err)

    return run_command


def settings(**more):
    return [part for key, value in (TINY | more).items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    train("digits", folder, settings=TINY, quiet=True)
    return folder


def test_help_lists_every_command():
    command = [sys.executable, "-m", "sage_snn", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert all(name in done.stdout for name in ("demo", "recipes", "train", "eval", "inspect", "export", "--version"))


def test_version_is_that_of_the_package(sage_snn):
    assert sage_snn("--version").stdout.strip() == "0.1.0"


def test_recipes_are_listed_shown_and_compared(sage_snn):
    listed = sage_snn("recipes").stdout
    assert "cifar10-mini" in listed
    shown = sage_snn("recipes", "cifar10").stdout
    assert "rand-m9-n1-mstd0.4-inc1" in shown
    assert "warmup_epochs: 20" in shown
    compared = sage_snn("recipes", "--diff", "cifar10", "imagenet200").stdout
    assert "weight_decay" in compared
    assert "0.05" in compared


def test_a_study_is_told_with_its_runs_and_cost(sage_snn):
    assert "150 runs of 310 epochs" in sage_snn("study", "list", "timesteps").stdout
    assert "no study 'timestep'" in sage_snn("study", "list", "timestep").stderr


def test_the_policies_are_those_that_a_recipe_may_have(sage_snn):
    told = " ".join(sage_snn("train", "--help").stdout.replace("│", " ").split())
    assert f"who sets the slopes: {', '.join(POLICIES.names)}" in told


def test_train_prints_plain_lines_where_nobody_watches_and_options_win(sage_snn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = settings(seed=1)
    done = sage_snn("train", "digits", "--policy", "fixed", "--time-steps", "3", "--seed", "7", *chosen)
    assert done.code == 0, done.stderr
    folder = tmp_path / "runs" / "digits-fixed-t3-s7"
    assert json.loads((folder / "summary.json").read_text())["seed"] == 7
    assert "epoch 1/1  loss" in done.stderr
    assert "\x1b" not in done.stderr


def test_eval_gives_accuracy_and_energy(sage_snn, run):
    result = json.loads(sage_snn("eval", run, "--json").stdout)
    assert result["images"] == 40
    assert result["per_image"]["sops"] > 0
    assert result["costs"]["mac_pj"] == 4.6
    assert "energy per image" in sage_snn("eval", run).stdout


def test_inspect_shows_heads_and_draws_maps(sage_snn, run):
    done = sage_snn("inspect", run)
    assert "entropy per head" in done.stdout
    assert (run / "inspection" / "attention.png").stat().st_size > 1000


@pytest.mark.parametrize(("to", "suffix"), [("safetensors", ".safetensors"), ("official", ".pth")])
def test_export_writes_a_file_and_prints_its_path(sage_snn, run, to, suffix):
    done = sage_snn("export", run, "--to", to)
    assert done.stdout.strip().endswith(f"export{suffix}")
    assert (run / f"export{suffix}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "cifar10-mimi"], "did you mean 'cifar10-mini'?"),
        (["train", "digits", "--set", "model.time_steps=0"], "model.time_steps"),
        (["train", "digits", "--set", "model.heads=7"], "must divide dim"),
        (["train", "digits", "--set", "warmup_epochs=500"], "must be fewer than epochs"),
        (["train", "cifar10", "--data-dir", "/nowhere"], "/nowhere"),
        (["train", "digits", "--set", "lr"], "key=value"),
        (
            ["train", "digits", "--policy", "fixed", "--set", "policy.gain=2"],
            "policy.gain is a field of sage; fixed has",
        ),
        (["train", "digits", "--policy", "best"], "'best' is not one of"),
        (["eval", "/nowhere"], "there is no folder /nowhere"),
        (["export", "/nowhere", "--to", "onnx"], "there is no folder /nowhere"),
        (["inspect", "."], "not a run's"),
        (["recipes", "nosuch"], "no recipe 'nosuch'"),
        (["report", "nosuch"], "there is no folder nosuch"),
        (["report", "heads"], "no run of study heads is finished in runs; `sage-snn study run` trains them"),
        (["report", "nosuch.yaml"], "cannot read nosuch.yaml"),
        (["study", "report", "heads", "--out", "x"], "no run of study heads is finished in x"),
        (["study", "run", "heads-small", "--data-dir", "/nowhere"], "study heads-small did not start, for want of its"),
    ],
)
def test_wrong_input_ends_in_a_message_not_in_a_traceback(sage_snn, command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = sage_snn(*command)
    assert done.code != 0
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def finish_two(study, root):
    """Two finished runs of a study, which nobody trained."""
    for planned in load_study(study).runs()[:2]:
        folder = RunFolder(root / "runs" / "runs" / planned.key)
        folder.signals.mkdir(parents=True)
        folder.write_recipe(planned.recipe, {})
        folder.append_metrics({"epoch": 0, "test_top1": 50.0, "images_per_second": 100.0})
        ended = {"last_top1": 50.0, "best_top1": 50.0, "epochs": 1, "parameters": 5, "seconds": 1.0}
        folder.write_summary(ended | {"peak_memory_mb": 9.0, "finished": True})


def test_a_study_has_one_page_by_either_command(sage_snn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish_two("table1-small", tmp_path)
    for command in (["study", "report", "table1-small"], ["report", "table1-small", "--out", "page"]):
        done = sage_snn(*command)
        assert done.code == 0, done.stderr
        page = Path(done.stdout.strip()).read_text(encoding="utf-8")
        assert "13 of 15 planned runs are not finished" in page
        assert 'id="claims"' in page


def test_a_study_file_of_one_s_own_has_a_page_by_either_command(sage_snn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text("recipe: digits\naxes: {policy.kind: [fixed, sage], seed: [1, 2]}\n")
    finish_two(mine, tmp_path)
    for command in (["study", "report", "mine.yaml"], ["report", "mine.yaml", "--data-dir", ".", "--out", "page"]):
        done = sage_snn(*command)
        assert done.code == 0, done.stderr
        page = Path(done.stdout.strip()).read_text(encoding="utf-8")
        assert "2 of 4 planned runs are not finished" in page
        assert 'id="claims"' not in page
    assert (tmp_path / "page" / "report.html").is_file()


@pytest.mark.slow
def test_demo_trains_the_three_policies_and_shows_the_table(sage_snn, tmp_path):
    done = sage_snn("demo", "--epochs", "3", "--out", tmp_path / "demo")
    assert done.code == 0, done.stderr
    assert all(policy in done.stdout for policy in ("fixed", "learnable", "sage", "tensorboard --logdir"))
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
    again = sage_snn("demo", "--epochs", "3", "--out", tmp_path / "demo")
    assert again.stderr.count("nothing to do") == 3
