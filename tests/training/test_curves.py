import json
import threading

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sage_snn.recipes import RecipeError, load_recipe
from sage_snn.runs import RunError, RunFolder
from sage_snn.studies.plan import run_key
from sage_snn.training import trackers, train
from sage_snn.training.curves import Curves, TensorBoard, epoch_points, step_points


def table(steps, blocks=2):
    rows = [
        {"step": step, "block": block, "dispersion": 0.5, "zscore": 0.0, "slope": 4 + block + step / 1000}
        | {"entropy": [0.25, 0.75]}
        for step in steps
        for block in range(blocks)
    ]
    return pd.DataFrame(rows, columns=["step", "block", "dispersion", "zscore", "slope", "entropy"])


def scalars(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_slopes_have_a_point_per_hundred_steps_and_one_at_the_end_of_the_epoch():
    points = step_points(table(range(150, 450)))
    assert list(points) == [200, 300, 400, 450]
    assert points[300] == {"slope/block 0": pytest.approx(4.299), "slope/block 1": pytest.approx(5.299)}


def test_an_epoch_has_means_and_no_slopes():
    metrics = {"epoch": 3, "test_top1": 50.0, "lr": None, "firing_rates": {"stem": 0.25}}
    assert epoch_points(metrics, table(range(2), blocks=1)) == {
        "run/test_top1": 50.0,
        "firing/stem": 0.25,
        "dispersion/block 0": 0.5,
        "entropy/block 0 head 0": 0.25,
        "entropy/block 0 head 1": 0.75,
    }
    assert step_points(table([])) == {}


def test_tensorboard_has_epochs_and_steps_in_files_of_their_own(finished):
    epochs, steps = scalars(finished / "tensorboard"), scalars(finished / "tensorboard" / "steps")
    assert [step for step, _ in epochs["run/test_top1"]] == [0, 1]
    assert not any(name.startswith("slope/") for name in epochs)
    assert [step for step, _ in steps["slope/block 1"]] == [3, 6]
    signals = pd.read_parquet(finished / "signals" / "epoch-0001.parquet")
    assert steps["slope/block 1"][1][1] == pytest.approx(signals["slope"].iloc[-1])


def test_a_resumed_run_draws_every_step_once(tmp_path, tiny, interrupted):
    folder = interrupted(tmp_path / "run", tiny)
    train("digits", folder, settings=tiny, resume=True, quiet=True)
    assert [step for step, _ in scalars(folder / "tensorboard" / "steps")["slope/block 0"]] == [3, 6]


def test_an_epoch_that_was_drawn_before_a_kill_is_drawn_once(tmp_path):
    for first, epochs in ((0, (0, 1)), (1, (1, 2))):  # killed before the checkpoint of the second epoch
        board = TensorBoard(tmp_path, first, 100 * first)
        for epoch in epochs:
            board.add(epoch, 100 * (epoch + 1), {"run/lr": 1.0}, {100 * (epoch + 1): {"slope/block 0": 4.0}})
        board.close(failed=False)
    assert [step for step, _ in scalars(tmp_path)["run/lr"]] == [0, 1, 2]
    assert [step for step, _ in scalars(tmp_path / "steps")["slope/block 0"]] == [100, 200, 300]


def test_who_draws_a_run_is_no_part_of_what_it_is():
    plain, followed = load_recipe("digits"), load_recipe("digits", {"loggers": ["wandb", "mlflow"]})
    assert run_key(plain) == run_key(followed)
    assert "loggers" not in plain.model_dump()  # recipes of other runs are written as ever
    assert load_recipe("digits", {"loggers": "wandb"}).loggers == ("wandb",)
    with pytest.raises(RecipeError, match="loggers"):
        load_recipe("digits", {"loggers": ["wandbb"]})


def test_without_loggers_nothing_is_drawn(tmp_path, tiny):
    train("digits", tmp_path / "run", settings=tiny | {"epochs": 1, "loggers": []}, quiet=True)
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_named_with_its_cure_before_anything_is_written(
    tmp_path, tiny, monkeypatch, name
):
    monkeypatch.setitem(trackers._PACKAGES, name, ("no-such-package-at-all",))
    with pytest.raises(RunError, match=rf'pip install "sage-snn\[{name}\]"'):
        train("digits", tmp_path / "run", settings=tiny | {"loggers": [name]}, quiet=True)
    assert not (tmp_path / "run").exists()


class Broken:
    """A sink whose server went away."""

    calls = 0

    def add(self, *_):
        self.calls += 1
        raise ConnectionResetError if self.calls > 1 else RuntimeError("server is gone")

    def close(self, *, failed):
        raise AssertionError("it was left out")


def test_a_logger_that_fails_is_left_out_and_the_run_goes_on():
    broken = Broken()
    curves = Curves({"mlflow": broken})
    metrics = {"epoch": 0, "firing_rates": {}}
    with pytest.warns(UserWarning, match="mlflow gets no more curves of this run: server is gone"):
        curves.add(metrics, table([0]), 1)
    curves.add(metrics, table([1]), 2)
    curves.close(failed=False)
    assert broken.calls == 1


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"wandb": {"id": 3, "project": "a"}}', '{"wandb": "abc"}', '{"mlflow": {}}']
)
def test_names_of_runs_that_cannot_be_read_are_refused(tmp_path, text):
    (tmp_path / "loggers.json").write_text(text)
    with pytest.raises(RunError, match=r"loggers\.json cannot be read .*; delete it"):
        trackers._links(RunFolder(tmp_path))


def rows_of(path):
    """What was logged, from W&B's own file: after 7 bytes, records in blocks of 32 KiB as LevelDB writes its logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:  # no header fits into the rest of the block
            at += 2**15 - at % 2**15
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole of a record, or its end
            record, whole = Record.FromString(whole), b""
            if record.history.item:
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                yield {key: json.loads(value) for key, value in items.items() if not key.startswith("_")}


@pytest.mark.slow
def test_weights_and_biases_follows_a_run_offline_and_goes_on_as_the_same_one(
    tmp_path, tiny, finished, interrupted, same_run, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = tiny | {"loggers": ["wandb"]}
    folder = interrupted(tmp_path / "run", settings)
    train("digits", folder, settings=settings, resume=True, quiet=True)
    assert same_run(folder, finished)  # to the bit
    name = json.loads((folder / "loggers.json").read_text())["wandb"]["id"]
    written = sorted(folder.glob(f"wandb/offline-run-*/run-{name}.wandb"))
    assert len(written) == 2  # begun, and gone on with

    points = {}
    for row in (row for path in written for row in rows_of(path)):
        for key in row:
            points.setdefault(key, []).append((row["trainer/global_step"], row[key]))
    top1 = [line["test_top1"] for line in RunFolder(folder).metrics()]
    assert points["run/test_top1"] == [(3, pytest.approx(top1[0])), (6, pytest.approx(top1[1]))]
    assert [step for step, _ in points["slope/block 0"]] == [3, 6]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
def test_mlflow_follows_a_run_into_a_local_store_and_goes_on_as_the_same_one(
    tmp_path, tiny, finished, interrupted, same_run, monkeypatch
):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    settings = tiny | {"loggers": ["tensorboard", "mlflow"]}
    folder = interrupted(tmp_path / "run", settings)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    name = json.loads((folder / "loggers.json").read_text())["mlflow"]["run_id"]
    assert client.get_run(name).info.status == "KILLED"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    train("digits", folder, settings=settings, resume=True, quiet=True)
    assert same_run(folder, finished)
    run = client.get_run(name)
    assert (run.info.status, run.data.params["seed"], run.data.params["policy/kind"]) == ("FINISHED", "42", "sage")
    assert [(m.step, m.value) for m in client.get_metric_history(name, "run/test_top1")] == [
        (step, line["test_top1"]) for step, line in zip((3, 6), RunFolder(folder).metrics(), strict=True)
    ]
    assert [m.step for m in client.get_metric_history(name, "slope/block 0")] == [3, 6]
    (folder / "loggers.json").write_text(
        json.dumps({"mlflow": {"run_id": "gone", "uri": f"sqlite:///{tmp_path}/mlflow.db"}})
    )
    (folder / "summary.json").unlink()
    with pytest.raises(RunError, match=r"mlflow cannot follow this run .*gone.* delete .*loggers\.json"):
        train("digits", folder, settings=settings, resume=True, quiet=True)


class LateAsyncWriter(threading.Thread):
    """As TensorBoard's, whose name is its own."""


def test_a_thread_that_meets_a_full_disk_after_its_run_has_failed_is_borne(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: told.append(failure.exc_value))
    (tmp_path / "steps").write_text("no folder")
    with pytest.raises(OSError, match="steps"):
        TensorBoard(tmp_path, 0, 0)
    full, other = OSError(28, "no space"), ValueError("a mistake")
    for error in (full, other):
        threading.excepthook(threading.ExceptHookArgs((type(error), error, None, LateAsyncWriter())))
    threading.excepthook(threading.ExceptHookArgs((OSError, full, None, threading.Thread())))
    assert told == [other, full]
    hook = threading.excepthook
    TensorBoard(tmp_path / "another", 0, 0).close(failed=False)
    assert threading.excepthook is hook, "it is wrapped once"
