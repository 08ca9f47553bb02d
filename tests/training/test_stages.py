import json
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

from sage_snn.deploy import export
from sage_snn.recipes import RecipeError, load_recipe
from sage_snn.runs import RunError
from sage_snn.runs.run import open_run
from sage_snn.training import train

COMMON = {
    "data": "digits",
    "train_images": 160,
    "test_images": 40,
    "policy": {"kind": "none"},
    "warmup_epochs": 0,
    "cooldown_epochs": 0,
    "batch_size": 16,
    "lr": 0.01,
    "threads": 1,
}
QCFS = COMMON | {
    "name": "qcfs",
    "model": {"name": "resnet20", "width": 0.5, "neuron": "half_rate", "levels": 4, "time_steps": 4},
    "stages": [{"name": "ann", "settings": {"model.neuron": "qcfs", "epochs": 2}}],
    "observe": {"activity": 8, "steps": [1, 2, 4]},
    "epochs": 0,
}
DIET = COMMON | {
    "name": "diet",
    "model": {"name": "vgg11", "width": 0.0625, "neuron": "diet", "time_steps": 3, "dropout": 0.1},
    "loss": {"kind": "sum_cross_entropy"},
    "stages": [{"name": "ann", "settings": {"model.neuron": "relu", "loss.kind": "cross_entropy", "epochs": 2}}],
    "balance": {"images": 32, "percentile": 99.7, "factor": 0.3},
    "epochs": 2,
}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages") / "qcfs"
    return folder, train(QCFS, folder, quiet=True)


def test_a_converted_network_has_the_weights_of_its_ann_and_one_line_of_metrics(converted):
    folder, summary = converted
    ann = load_file(folder / "stages" / "1-ann" / "model.safetensors")
    snn = load_file(folder / "model.safetensors")
    assert ann.keys() == snn.keys()
    assert all(torch.equal(ann[name], snn[name]) for name in ann)
    assert float(ann["stem.0.lif.threshold"]) != 8.0  # it was trained
    (line,) = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line[name] for name in ("epoch", "train_loss", "lr", "images_per_second")] == [0, None, None, None]
    assert line["test_top1"] == summary["last_top1"] == summary["best_top1"]
    assert summary["epochs"] == 0


def test_the_summary_tells_of_its_stages_steps_and_operations(converted):
    folder, summary = converted
    (stage,) = summary["stages"]
    own = json.loads((folder / "stages" / "1-ann" / "summary.json").read_text())
    assert stage == {"name": "ann", "time_steps": 1} | {
        key: own[key] for key in ("epochs", "seconds", "last_top1", "best_top1")
    }
    assert summary["seconds"] == own["seconds"] > 0
    assert list(summary["top1_by_steps"]) == ["1", "2", "4"]
    assert summary["top1_by_steps"]["4"] == pytest.approx(summary["last_top1"])
    assert summary["activity"]["images"] == 8
    assert summary["activity"]["sops"] > 0


def test_a_staged_run_is_opened_like_any_other(converted, tmp_path):
    folder, summary = converted
    run = open_run(folder)
    network, batch = run.network(), next(run.test_loader().epoch(0))
    with torch.no_grad():
        logits = network(batch.images)
    assert logits.shape == (len(batch.images), 10)
    assert export(network, tmp_path / "net.onnx", "onnx", batch.images[:2]).is_file()
    assert train(QCFS, folder, resume=True, quiet=True) == summary  # nothing is trained again
    with pytest.raises(RunError, match="holds a run already; add --resume"):
        train(QCFS, folder, quiet=True)


def test_thresholds_are_balanced_once_and_then_trained(tmp_path):
    summary = train(DIET, tmp_path / "run", quiet=True)
    assert [stage["name"] for stage in summary["stages"]] == ["ann"]
    ann = load_file(tmp_path / "run" / "stages" / "1-ann" / "model.safetensors")
    snn = load_file(tmp_path / "run" / "model.safetensors")
    added = {name.rpartition(".")[2] for name in snn.keys() - ann.keys()}
    assert added == {"threshold", "leak"}
    leaks = [float(value) for name, value in snn.items() if name.endswith("leak")]
    assert len(leaks) == 11
    assert any(leak != 1.0 for leak in leaks)
    assert all(float(value) != 1.0 for name, value in snn.items() if name.endswith("threshold"))


def killed_once(command, has_come):
    """Start, and kill when it has come so far."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not has_come():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_kill_9_in_each_stage_resumes_to_the_same_bits(tmp_path):
    recipe, out = tmp_path / "diet.yaml", tmp_path / "killed"
    # Epochs are short: the time between two looks must not suffice for all of them.
    longer = DIET | {
        "epochs": 8,
        "stages": [DIET["stages"][0] | {"settings": DIET["stages"][0]["settings"] | {"epochs": 8}}],
    }
    recipe.write_text(yaml.safe_dump(longer))
    command = [sys.executable, "-m", "sage_snn", "train", str(recipe), "--out", str(out), "--resume"]
    killed_once(command, lambda: (out / "recipe.yaml").is_file())
    killed_once(command, lambda: any((out / "stages" / "1-ann" / "checkpoints").glob("*.pt")))
    assert not (out / "stages" / "1-ann" / "summary.json").exists()
    killed_once(command, lambda: (out / "stages" / "1-ann" / "summary.json").exists())
    assert not (out / "summary.json").exists()
    killed_once(command, lambda: any((out / "checkpoints").glob("*.pt")))
    assert not (out / "summary.json").exists()
    subprocess.run(command, check=True, capture_output=True)
    train(recipe, tmp_path / "whole", quiet=True)
    for name in ("model.safetensors", "stages/1-ann/model.safetensors"):
        resumed, whole = (load_file(folder / name) for folder in (out, tmp_path / "whole"))
        assert all(torch.equal(resumed[key], whole[key]) for key in whole)
    told = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (out, tmp_path / "whole")
    ]
    kept = [
        [{key: line[key] for key in ("epoch", "train_loss", "test_loss", "test_top1")} for line in lines]
        for lines in told
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"stages": [{"name": "ann", "settings": {"model.time_steps": 2, "epochs": 1}}]},
            "ann trains resnet20 with T=2, the recipe",
        ),
        (
            {"stages": [{"name": "ann", "settings": {"model.name": "vgg11", "epochs": 1}}]},
            "weights pass between stages of one network",
        ),
        ({"stages": [{"name": "ann", "settings": {"seed": 3}}]}, "ann sets seed, which all stages share"),
        ({"stages": [{"name": "ann", "settings": {"epoch": 3}}]}, "epoch: no such field; did you mean 'epochs'"),
        ({"stages": [{"name": "a", "settings": {"epochs": 1}}] * 2}, "two are called a; give each a name of its own"),
        ({"stages": [{"nam": "a"}]}, r"stages\.0\.nam: no such field; did you mean 'name'"),
        ({"stages": []}, "0 epochs train nothing: add stages, or --init-from"),
        ({"stages": [], "epochs": 2, "balance": {}}, "balance needs trained weights: add stages"),
        ({"balance": {}}, "balance sets the thresholds of model.neuron: rate, diet or stdb"),
        ({"balance": {"image": 3}}, r"balance\.image: no such field; did you mean 'images'"),
        ({"model": {"name": "spikformer", "dim": 16, "heads": 2}, "balance": {}}, "balance sets the thresholds of"),
        (
            {"model": {"name": "vgg11", "neuron": "relu", "encoding": "poisson"}},
            "an ANN .relu. reads images as they are",
        ),
        (
            {"model": {"name": "spikformer", "neuron": "half_rate", "dim": 16, "heads": 2}},
            "half_rate is for resnet19, .*, not for spikformer; choose one of them, or set model.neuron: lif",
        ),
        ({"policy": {"kind": "sage"}}, "is longer than the training .0.: add --policy none"),
    ],
)
def test_stages_that_do_not_fit_are_refused_with_the_cure(changes, words):
    with pytest.raises(RecipeError, match=words):
        load_recipe(QCFS | changes)


def test_a_stage_that_is_half_done_is_not_taken_for_done(converted, tmp_path):
    import shutil

    folder = tmp_path / "half"
    shutil.copytree(converted[0], folder)
    for gone in ("summary.json", "stages/1-ann/summary.json", "stages/1-ann/model.safetensors"):
        (folder / gone).unlink()
    assert train(QCFS, folder, resume=True, quiet=True)["last_top1"] == converted[1]["last_top1"]
    assert (folder / "stages" / "1-ann" / "model.safetensors").is_file()
