import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from sage_snn.studies import StudyError, runner
from sage_snn.studies.progress import announcement, duration
from sage_snn.studies.results import load_runs, table
from sage_snn.studies.runner import run_study
from sage_snn.studies.state import BusyRunError, StudyState
from sage_snn.studies.status import finished_runs, status, status_table
from sage_snn.studies.study import parse_study
from sage_snn.training import InterruptedRunError

TINY = {
    "name": "tiny",
    "about": {"seconds_per_run": 60},
    "recipe": "digits",
    "settings": {
        "epochs": 2,
        "warmup_epochs": 0,
        "max_steps_per_epoch": 3,
        "train_images": 200,
        "test_images": 60,
        "batch_size": 16,
        "lr": 0.01,
        "model": {"depth": 2, "dim": 16, "heads": 2, "time_steps": 1},
        "policy.warmup_epochs": 0,
        "policy.dead_zone": 0.0,
        "threads": 1,
    },
    "axes": {"policy.kind": ["fixed", "sage"], "seed": [1, 2]},
}
ALL_IMAGES = {key: value for key, value in TINY["settings"].items() if key != "train_images"}


def tiny(settings=None, **changes):
    return parse_study(TINY | changes, settings=settings)


def states(study, out):
    return [row.state for row in status(study, out)]


def timeless(folders):
    """The table without what the clock and the machine decide."""
    found = table(load_runs(folders)).drop(columns=["folder", "seconds", "images_per_second", "peak_memory_mb"])
    return found.sort_values(["time_steps", "label", "seed"]).reset_index(drop=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished study and where it is."""
    out = tmp_path_factory.mktemp("out")
    study = tiny()
    return study, out, run_study(study, out, progress=False)


def test_a_study_ends_in_folders_that_make_a_table(done):
    study, out, folders = done
    assert [folder.name for folder in folders] == [planned.key for planned in study.runs()]
    assert finished_runs(study, out) == folders
    assert list(table(load_runs(folders))["label"]) == ["fixed", "sage", "fixed", "sage"]
    assert states(study, out) == ["done"] * 4


def test_finished_runs_are_not_run_again_and_are_shared_between_studies(done, capsys):
    _, out, _ = done
    other = tiny(name="other", axes={"policy.kind": ["fixed", "sage"], "seed": [1]})
    run_study(other, out)
    assert StudyState(other, out).attempts() == []
    told = capsys.readouterr().err
    assert "study other: 2 runs, 2 finished already" in told
    assert "2 of 2 runs are finished" in told


def test_the_time_is_told_before_it_starts(done, tmp_path):
    study, out, _ = done
    state = StudyState(study, tmp_path)
    assert "4 runs, 0 finished already; about 4 min for the rest" in announcement(state, study.runs())
    longer = tiny(axes={"policy.kind": ["fixed", "sage"], "seed": [1, 2, 3]})
    assert "measured on 4 finished runs" in announcement(StudyState(longer, out), longer.runs())
    unknown = tiny(about={"cost": "a GPU job"})
    assert "not known (a GPU job)" in announcement(StudyState(unknown, tmp_path), unknown.runs())
    assert [duration(s) for s in (3, 600, 7500)] == ["3 s", "10 min", "2 h 5 min"]


def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path, capsys):
    study = parse_study(TINY | {"settings": ALL_IMAGES, "axes": {"train_images": [200, 5000], "seed": [1]}})
    folders = run_study(study, tmp_path)
    assert len(folders) == 1
    rows = status(study, tmp_path)
    assert [row.state for row in rows] == ["done", "failed"]
    assert "train_images is 5000" in rows[1].why
    assert "1 failed; `study status` in place of `study run` says why" in capsys.readouterr().err
    console = Console(width=200, file=io.StringIO())
    with console.capture() as shown:
        console.print(status_table(study, rows, tmp_path))
    assert "1 done, 1 failed" in shown.get()


def test_a_study_without_any_finished_run_is_an_error(tmp_path):
    study = tiny(axes={"seed": [1, 2]})
    state = StudyState(study, tmp_path)
    state.prepare()
    for planned in study.runs():  # folders that no run may be written to
        state.run_folder(planned).path.write_text("")
    with pytest.raises(StudyError, match="none of the 2 runs of study tiny could be finished"):
        run_study(study, tmp_path, progress=False)


def test_a_study_without_its_data_stops_once_with_the_cure(tmp_path, capsys):
    axes = {"data": ["digits", "cifar10"], "seed": [1, 2, 3]}
    for data_dir in (None, str(tmp_path / "no-data")):
        study = tiny({"data_dir": data_dir}, axes=axes)
        with pytest.raises(
            StudyError, match=r"study tiny did not start, for want of its data: cifar10(.|\n)*--data-dir"
        ):
            run_study(study, tmp_path / "out")
        assert states(study, tmp_path / "out") == ["waiting"] * 6
        assert "FAILED" not in capsys.readouterr().err


def test_each_data_set_is_looked_at_once_and_only_for_runs_that_are_left(done, monkeypatch):
    looked: list[str] = []
    monkeypatch.setattr(runner, "data_of", lambda recipe: looked.append(recipe.data))
    study, out, _ = done
    run_study(study, out, progress=False)
    assert looked == []
    assert runner.missing_data([planned.recipe for planned in study.runs()]) is None
    assert looked == ["digits"]


def test_a_study_stops_politely_and_goes_on(tmp_path):
    study = tiny({"epochs": 60}, axes={"policy.kind": ["fixed", "sage"]})
    state = StudyState(study, tmp_path)
    first = study.runs()[0]

    def stop():
        while state.epochs_done(first) < 1:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(InterruptedRunError, match="run the same command again to go on"):
        run_study(study, tmp_path, progress=False)
    thread.join()
    assert states(study, tmp_path) == ["partly", "waiting"]
    assert state.failures() == {}


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    study = tiny()
    state, other = StudyState(study, tmp_path), StudyState(study, tmp_path)
    state.prepare()
    planned = study.runs()[0]
    with state.training(planned):
        assert states(study, tmp_path)[0] == "running"
        assert f"by process {os.getpid()}" in status(study, tmp_path)[0].why
        with pytest.raises(BusyRunError, match="another process is training"), other.training(planned):
            pass
    assert states(study, tmp_path)[0] == "waiting"


@pytest.mark.slow
def test_a_run_of_a_running_study_cannot_be_trained_beside_it(tmp_path):
    study = tiny({"epochs": 5000}, axes={"policy.kind": ["fixed"]})
    state, planned = StudyState(study, tmp_path), study.runs()[0]
    folder = state.run_folder(planned).path
    beside = [sys.executable, "-m", "sage_snn", "train", f"{folder}/recipe.yaml", "--out", f"{folder}", "--resume"]
    refused = []

    def train_beside():
        while state.epochs_done(planned) < 1:
            time.sleep(0.02)
        refused.append(subprocess.run(beside, capture_output=True, text=True, check=False))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=train_beside)
    thread.start()
    with pytest.raises(InterruptedRunError, match="run the same command again to go on"):
        run_study(study, tmp_path, progress=False)
    thread.join()
    assert refused[0].returncode == 1
    assert f"is being trained by process {os.getpid()}" in refused[0].stderr


def test_a_run_that_another_process_has_is_waited_for(tmp_path):
    study = tiny(axes={"policy.kind": ["fixed"], "seed": [1]})
    state = StudyState(study, tmp_path)
    state.prepare()
    held = state.training(study.runs()[0])
    held.__enter__()
    threading.Timer(0.5, held.__exit__, (None, None, None)).start()
    assert len(run_study(study, tmp_path, progress=False)) == 1


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"cannot write to .*choose another --out"):
        run_study(tiny(), tmp_path / "file", progress=False)


def test_torn_state_files_do_no_harm(done):
    study, out, _ = done
    state = StudyState(study, out)
    (state.folder / "failures.json").write_text("{")
    assert states(study, out) == ["done"] * 4
    (state.folder / "failures.json").unlink()


@pytest.mark.slow
def test_three_kills_end_in_the_same_table_as_none(tmp_path):
    axes = {"model.time_steps": [1, 2], "policy.kind": ["fixed", "sage"], "seed": [1]}
    fields = TINY | {"settings": {k: v for k, v in TINY["settings"].items() if k != "model"} | {"epochs": 6}}
    fields["settings"] |= {"model.depth": 2, "model.dim": 16, "model.heads": 2}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields | {"axes": axes}))
    study = parse_study(fields | {"axes": axes})
    code = "import sys; from sage_snn.studies import load_study; from sage_snn.studies.runner import run_study; "
    code += "run_study(load_study(sys.argv[1]), sys.argv[2], progress=False)"
    command = [sys.executable, "-W", "ignore", "-c", code, str(path), str(tmp_path / "killed")]
    state = StudyState(study, tmp_path / "killed")
    for epochs in (3, 9, 16):
        process = subprocess.Popen(command)
        while sum(map(state.epochs_done, study.runs())) < epochs:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert "waiting" in states(study, tmp_path / "killed")
    assert "running" not in states(study, tmp_path / "killed")
    subprocess.run(command, check=True)
    whole = run_study(study, tmp_path / "whole", progress=False)
    killed = finished_runs(study, tmp_path / "killed")
    pd.testing.assert_frame_equal(timeless(killed), timeless(whole))
    for a, b in zip(killed, whole, strict=True):
        left, right = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
        assert all(torch.equal(left[name], right[name]) for name in right)


def test_runs_that_are_kept_without_weights_are_finished_and_make_the_same_table(done, tmp_path, monkeypatch):
    study, out, folders = done
    kept = tmp_path / "kept"
    left = ("checkpoints", "tensorboard", "stages", "studies", ".locks", ".lock", "*.safetensors")
    shutil.copytree(out, kept, ignore=shutil.ignore_patterns(*left))
    for recipe in kept.glob("runs/*/recipe.yaml"):
        lines = recipe.read_text(encoding="utf-8").splitlines(keepends=True)
        recipe.write_text("".join(line for line in lines if not line.startswith("data_dir:")), encoding="utf-8")
    names = {path.name for path in kept.glob("runs/*/*")}
    assert names == {"recipe.yaml", "metrics.jsonl", "summary.json", "signals"}
    monkeypatch.setattr(runner, "train_one", lambda *_: pytest.fail("it was trained again"))
    assert states(study, kept) == ["done"] * len(folders)
    again = run_study(study, kept, progress=False)
    assert [path.name for path in again] == [path.name for path in folders]
    pd.testing.assert_frame_equal(timeless(again), timeless(folders))
    assert all(
        run.signals().equals(before.signals()) for run, before in zip(load_runs(again), load_runs(folders), strict=True)
    )
