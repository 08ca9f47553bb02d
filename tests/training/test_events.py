"""A run on events from its recipe to all that can be done with it."""

import json

import pytest
import torch
from event_files import cifar10_dvs, n_mnist
from typer.testing import CliRunner

from sage_snn import load
from sage_snn.cli import app
from sage_snn.recipes import load_recipe
from sage_snn.runs import RunError, open_run, predict
from sage_snn.runs.card import card_of
from sage_snn.training import InterruptedRunError, stopping, train

TINY = {
    "data": "n-mnist",
    "epochs": 3,
    "warmup_epochs": 0,
    "cooldown_epochs": 0,
    "batch_size": 2,
    "threads": 1,
    "workers": 0,
    "model.depth": 2,
    "model.dim": 32,
    "lr": 1e-2,
    "model.heads": 2,
    "model.time_steps": 4,
    "model.patch_size": 8,
    "policy.warmup_epochs": 0,
    "policy.dead_zone": 0.0,
    "augmentation.mixup_off_epoch": 2,
}
EVENTS = 3000  # of a recording: enough for the network to fire


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return n_mnist(tmp_path_factory.mktemp("n-mnist"), count=EVENTS)


@pytest.fixture(scope="module")
def settings(data):
    return TINY | {"data_dir": str(data), "observe.activity": 4, "observe.steps": [2, 4]}


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "events"
    train("cifar10-dvs", folder, settings=settings, quiet=True)
    return folder


def told(*arguments):
    """What a command says."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_a_run_on_events_leaves_what_a_run_on_images_leaves(run):
    opened, applied = open_run(run), open_run(run).folder.applied()
    assert applied["shape"] == {"classes": 10, "size": 34, "channels": 2}
    assert applied["mean"] == applied["std"] == []
    assert applied["augmentations"][0] == "flip left to right with probability 0.5"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"]
    assert summary["top1_by_steps"].keys() == {"2", "4"}
    assert summary["top1_by_steps"]["4"] == pytest.approx(summary["last_top1"])
    assert summary["activity"]["firing_rate"] > 0
    assert summary["activity"]["images"] == 4
    assert [block.attention.scale for block in opened.network().blocks] == [0.25, 0.25]


def test_an_interrupted_run_on_events_resumes_to_the_same_bits_whatever_the_workers(
    run, tmp_path, settings, monkeypatch, same_run
):
    class Stop(stopping.StopRequest):
        looks = 0

        @property
        def asked(self):
            self.looks += 1
            return self.looks == 3

    with monkeypatch.context() as patch:
        patch.setattr(stopping, "StopRequest", Stop)
        with pytest.raises(InterruptedRunError):
            train("cifar10-dvs", tmp_path / "run", settings=settings, quiet=True)
    train("cifar10-dvs", tmp_path / "run", settings=settings | {"workers": 1}, resume=True, quiet=True)
    assert same_run(run, tmp_path / "run")


def test_eval_tells_accuracy_and_energy_per_recording(run):
    code, text = told("eval", run, "--json")
    assert code == 0, text
    result = json.loads(text)
    assert (result["images"], result["per_image"]["counted_on"]) == (10, 10)
    assert result["per_image"]["macs_done"] > 0
    # Every event meets 9 weights of each of the 4 first channels, fewer at the border: no MAC is needed.
    assert result["layers"]["stem.stages.0"]["macs"] == 0
    assert 0.8 * EVENTS * 36 < result["layers"]["stem.stages.0"]["acs"] <= EVENTS * 36
    code, text = told("eval", run)
    assert "sees counts of events" in " ".join(text.split())


def test_inspect_draws_events_and_check_reads_them(run, data):
    code, text = told("inspect", run)
    assert code == 0, text
    assert (run / "inspection" / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "inspection" / "attention-1.png").is_file()
    code, text = told("check", run)
    assert "blocks.1" in text
    assert code in (0, 1)  # whether such a small network is healthy is not the question


def test_the_network_loads_without_data_and_predict_says_what_to_do(run, tmp_path):
    model = load(run)
    assert model(torch.ones(4, 3, 2, 34, 34)).shape == (3, 10)
    assert card_of(open_run(run))["input"] == [4, 2, 34, 34]
    with pytest.raises(RunError, match=r"predict reads pictures, and events was trained on events \(n-mnist\)"):
        predict(open_run(run), [tmp_path / "a.png"])
    code, text = told("push", run, "--to-folder", tmp_path / "pushed")
    assert code == 0, text
    card = (tmp_path / "pushed" / "README.md").read_text()
    assert "model(events)  # (T, B, 2, 34, 34) -> (B, 10)" in card
    assert "divided into T = 4 frames" in card


@pytest.mark.slow
def test_events_are_exported_with_time_first(run, tmp_path):
    import onnxruntime

    code, text = told("export", run, "--to", "onnx", "--out", tmp_path / "events.onnx")
    assert code == 0, text
    events = torch.poisson(torch.full((4, 5, 2, 34, 34), 0.2), generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(tmp_path / "events.onnx")
    logits = torch.from_numpy(session.run(None, {"images": events.numpy()})[0])
    with torch.no_grad():
        assert logits.argmax(1).equal(load(run)(events).argmax(1))


@pytest.mark.slow
def test_a_study_of_event_recipes_runs_to_its_page(tmp_path, settings):
    axes = {"seed": [1, 2], "policy.kind": ["fixed", "sage"]}
    study = {"recipe": "cifar10-dvs", "settings": settings | {"epochs": 1}, "axes": axes}
    path = tmp_path / "events.yaml"
    path.write_text(json.dumps(study))
    code, text = told("study", "run", path, "--out", tmp_path / "out")
    assert code == 0, text
    assert list((tmp_path / "out").rglob("*.html"))


def test_the_official_recipe_is_that_of_the_authors():
    recipe = load_recipe("cifar10-dvs")
    model = recipe.model.build(classes=10, size=128, channels=2)
    stem = 9 * (2 * 32 + 32 * 64 + 64 * 128 + 128 * 256 + 256 * 256) + 2 * (32 + 64 + 128 + 256 + 256)
    attention = 4 * 256 * 256 + 256 + 4 * 2 * 256  # only the projection has a bias
    mlp = 2 * 256 * 1024 + 1024 + 256 + 2 * (1024 + 256)
    assert stem + 2 * (attention + mlp) + 257 * 10 == 2_566_666  # 2.57 M in the paper
    assert sum(p.numel() for p in model.parameters()) == 2_566_666
    assert (recipe.total_epochs, recipe.batch_size, recipe.lr, recipe.weight_decay) == (106, 16, 1e-3, 0.06)
    assert (recipe.seed, recipe.model.time_steps, recipe.model.attention_scale) == (2021, 16, 0.25)
    augmentation = recipe.augmentation
    assert (augmentation.mixup, augmentation.mixup_probability, augmentation.mixup_off_epoch) == (0.5, 0.5, 75)


@pytest.mark.slow
def test_one_step_of_the_official_recipe_at_full_size(tmp_path):
    place = cifar10_dvs(tmp_path / "data")
    short = {"epochs": 1, "warmup_epochs": 0, "cooldown_epochs": 0, "policy.warmup_epochs": 0, "threads": 1}
    cut = {"data_dir": str(place), "train_images": 20, "test_images": 10, "workers": 0, "max_steps_per_epoch": 1}
    before = load_recipe("cifar10-dvs")
    summary = train("cifar10-dvs", tmp_path / "run", settings=short | cut, quiet=True)
    recipe = open_run(tmp_path / "run").recipe
    assert (recipe.batch_size, recipe.model, recipe.augmentation) == (16, before.model, before.augmentation)
    assert 1.8 < open_run(tmp_path / "run").folder.metrics()[0]["train_loss"] < 3.5
    assert summary["finished"]
