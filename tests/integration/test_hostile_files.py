"""Files that somebody made to do harm end in an error of the user's, at once, and nothing of theirs is executed."""

import hashlib
import io
import json
import os
import pickle
import shutil
import sys

import numpy as np
import pytest
import torch
import yaml
from tiny import TINY

from sage_snn.cli import main
from sage_snn.runs import RunError
from sage_snn.studies.results import load_runs
from sage_snn.training import train

SETTINGS = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    train("digits", folder, settings=TINY, quiet=True)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run that may be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def refused(capsys, monkeypatch, tmp_path):
    """Runs a command that has to fail, and gives what it says."""

    def run_command(*args):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["sage-snn", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert isinstance(stop.value.code, str), capsys.readouterr()  # else it went well, or typer refused it
        assert "\x1b" not in stop.value.code
        return stop.value.code

    return run_command


class Evil:
    def __reduce__(self):
        return os.system, ("touch owned",)


def bomb(depth=9):
    """A few hundred bytes that stand for 9^9 values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefghij"[:depth], "bcdefghijk", strict=False):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: ../../evil", "no slash"),
        ("name: .hidden", "no dot in front"),
        ('name: "a\\eb"', "no control character"),
        (f"about:\n{bomb()}".replace("\n", "\n  "), "aliases stand for more than 100,000 values"),
        ("a: &a {<<: [*a, *a]}", "is not YAML"),
        ("about: &a {self: *a}", "an alias holds itself"),
        ("about: " + "[" * 2_000, "is not YAML"),
        ("about: {when: 2024-99-99}", "month must be in 1..12"),
        ("epochs: " + "9" * 5000, "a number of 5000 digits; write one of at most 40"),
        ('"a\\eb": 1', "no such field"),
        ("about: !!python/object/apply:os.system ['touch owned']", "could not determine a constructor"),
    ],
)
def test_a_recipe(refused, tmp_path, text, told):
    (tmp_path / "mine.yaml").write_text(text)
    message = refused("recipes", "mine.yaml")
    assert message.startswith("error: mine.yaml")
    assert told in message
    assert not (tmp_path / "owned").exists()


def test_a_setting(refused):
    assert "the value of epochs is not YAML" in refused("train", "digits", "--set", "epochs=2024-99-99")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "zeros"])
@pytest.mark.parametrize("name", ["recipe.yaml", "summary.json", "metrics.jsonl"])
def test_a_file_of_a_run_that_never_ends(refused, run, name, make):
    (run / name).unlink()
    make(run / name)
    assert str(run) in refused("report", run)


def test_signals_that_never_end(run):
    (run / "signals" / "epoch-0000.parquet").unlink()
    os.mkfifo(run / "signals" / "epoch-0000.parquet")
    (result,) = load_runs([run])
    assert not result.has_head_entropy
    with pytest.raises(RunError, match=r"epoch-0000\.parquet cannot be read"):
        result.signals()


@pytest.mark.parametrize("name", ["mine.yaml", "study.yaml"])
def test_a_pipe_for_a_recipe_or_a_study(refused, tmp_path, name):
    os.mkfifo(tmp_path / name)
    command = ["recipes"] if name == "mine.yaml" else ["study", "status"]
    assert f"cannot read {name}" in refused(*command, name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", "[1]"),
        ("summary.json", '{"last_top1": "x"}'),
        ("summary.json", "9" * 5000),
        ("summary.json", "[" * 100_000),
        ("metrics.jsonl", "[]\n"),
        ("metrics.jsonl", '{"epoch": "x"}\n'),
        ("metrics.jsonl", '{"epoch": ' + "9" * 5000 + "}\n"),
        ("metrics.jsonl", '{"epoch": 0, "images_per_second": "x"}\n'),
        ("metrics.jsonl", "\udcff\n"),
        ("recipe.yaml", "\udcff\n"),
        ("recipe.yaml", "[1, 2]\n"),
    ],
)
def test_numbers_of_a_run_that_are_none(refused, run, name, text):
    (run / name).write_bytes(text.encode(errors="surrogateescape"))
    assert str(run) in refused("report", run)


@pytest.mark.parametrize("applied", [[1, 2], {"shape": [1]}, {"shape": {"size": -1}}, {"versions": 3, "classes": 4}])
def test_facts_of_another_kind_are_no_facts(run, applied, monkeypatch, capsys):
    fields = yaml.safe_load((run / "recipe.yaml").read_text()) | {"applied": applied}
    (run / "recipe.yaml").write_text(yaml.safe_dump(fields))
    monkeypatch.setattr(sys, "argv", ["sage-snn", "export", str(run), "--to", "safetensors"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0


STATE = {"epoch": 1, "step": 0, "epoch_seconds": 0.0, "seconds": 0.0, "best": 0.0, "model": {}, "policy": {}}


@pytest.mark.parametrize(
    "forged",
    [
        {"version": 2},
        {"version": 2, "state": []},
        {"version": 2, "state": {"epoch": "x"}},
        {"version": 2, "state": STATE | {"optimizer": {}, "precision": {}, "recorder": [], "ranks": [{}]}},
        {"version": [2], "state": {}},
        [1],
        {"version": 2, "state": Evil()},
    ],
)
def test_a_forged_checkpoint(refused, run, tmp_path, forged):
    for path in (run / "summary.json", run / "model.safetensors", *(run / "checkpoints").iterdir()):
        path.unlink()
    file = io.BytesIO()
    torch.save(forged, file)
    name = f"step-000000002-{hashlib.sha256(file.getvalue()).hexdigest()[:16]}.pt"
    (run / "checkpoints" / name).write_bytes(file.getvalue())
    before = sorted(run.rglob("*"))
    for command in (["eval", run], ["train", "digits", "--out", run, "--resume", *SETTINGS]):
        assert "checkpoint" in refused(*command)
    assert sorted(run.rglob("*")) == before
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("suffix", ["txt", "pth", "safetensors"])
@pytest.mark.parametrize("content", [b"hello world\n", b"", b"\x80\x02.", b"PK\x03\x04", b"\xff" * 64])
def test_weights_that_are_none(refused, tmp_path, suffix, content):
    (tmp_path / f"weights.{suffix}").write_bytes(content)
    message = refused("train", "digits", "--init-from", f"weights.{suffix}", *SETTINGS)
    assert f"weights.{suffix} " in message


def test_weights_that_would_execute_code(refused, tmp_path):
    torch.save({"weights": Evil()}, tmp_path / "weights.pth")
    assert "cannot be read as weights" in refused("train", "digits", "--init-from", "weights.pth", *SETTINGS)
    assert not (tmp_path / "owned").exists()


def test_arrays_that_would_execute_code(refused, tmp_path):
    np.savez(tmp_path / "data.npz", images=np.array([Evil()], dtype=object), labels=np.array([0]))
    command = ["train", "digits", "--set", "data=arrays", "--data-dir", "data.npz", *SETTINGS]
    assert "array of Python objects" in refused(*command)
    assert not (tmp_path / "owned").exists()


def test_cifar_that_would_execute_code(refused, tmp_path):
    """CIFAR's own files are pickles: only those with the published checksums are opened."""
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(Evil()))
    assert "does not have the md5" in refused("train", "cifar10", "--data-dir", tmp_path / "data")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("command", [["recipes"], ["train"], ["eval"], ["check"], ["report"], ["study", "status"]])
def test_a_name_that_no_disk_holds(refused, command):
    assert "xxx" in refused(*command, "x" * 5000)


@pytest.mark.parametrize("field", ["recipe", "follows"])
def test_a_study_that_names_what_no_disk_holds(refused, tmp_path, field):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"recipe": "digits", "axes": {"seed": [1]}, field: "9" * 3000}))
    assert "999" in refused("study", "status", "study.yaml")


def test_data_of_one_class(refused, tmp_path):
    np.savez(tmp_path / "data.npz", images=np.zeros((400, 8, 8), np.uint8), labels=np.zeros(400, int))
    assert "of one class" in refused("train", "digits", "--set", "data=arrays", "--data-dir", "data.npz", *SETTINGS)


@pytest.mark.parametrize("label", ["[/red]x", "a\x1b]0;evil\x07", "[link=http://evil]x"])
def test_a_label_is_shown_as_it_is_written(label, tmp_path, monkeypatch, capsys):
    variants = [{"label": label, "settings": {"lr": 0.1}}, {"label": "b", "settings": {"lr": 0.2}}]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"recipe": "digits", "variants": variants}))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["sage-snn", "study", "status", str(tmp_path / "study.yaml")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert label.encode("unicode_escape").decode() in out
    assert "\x1b" not in out


@pytest.mark.slow
def test_names_do_nothing_to_a_page(run, tmp_path, monkeypatch):
    word = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>"
    evil = run.rename(run.parent / word.replace("/", "∕"))
    fields = yaml.safe_load((evil / "recipe.yaml").read_text())
    fields |= {"name": word.replace("/", "∕"), "about": {"what": word}}
    fields["applied"] |= {"classes": [word] * 10, "machine": word, "device": word, "policy": [word]}
    (evil / "recipe.yaml").write_text(yaml.safe_dump(fields, allow_unicode=True))
    summary = json.loads((evil / "summary.json").read_text())
    (evil / "summary.json").write_text(json.dumps(summary | {"silent_from": word, "policy": word}))
    monkeypatch.setattr(sys, "argv", ["sage-snn", "report", str(evil), "--out", str(tmp_path / "page")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert" in page
