"""QKFormer and SpikingResformer from a recipe: training, and all that can be done with a run."""

import copy

import pandas as pd
import pytest
import torch
from torch import nn

from sage_snn import check, load
from sage_snn.deploy import export, formats, fuse
from sage_snn.models import qkformer, spikingresformer
from sage_snn.recipes import RecipeError, load_recipe, shipped_recipes
from sage_snn.runs import assess, check_recipe, inspect_run, open_run
from sage_snn.runs.card import card_of
from sage_snn.training import train

BLOCKS = {"qkformer": [2, 2, 2, 2], "spikingresformer": [1, 3, 3, 6, 6, 6]}  # heads of each
SETTINGS = {
    "qkformer": {"model.name": "qkformer", "model.dim": 16, "model.depth": 4, "model.stage_heads": 2},
    "spikingresformer": {"model.name": "spikingresformer", "model.head_width": 2},
}
TINY = {
    "epochs": 1,
    "warmup_epochs": 0,
    "max_steps_per_epoch": 3,
    "train_images": 64,
    "test_images": 20,
    "batch_size": 16,
    "model.time_steps": 2,
    "policy.warmup_epochs": 0,
    "threads": 1,
}


@pytest.fixture(scope="module", params=SETTINGS)
def run(request, tmp_path_factory):
    """Its name, and the folder of a tiny run on digits with SAGE."""
    folder = tmp_path_factory.mktemp("runs") / request.param
    train("digits", folder, settings=TINY | SETTINGS[request.param], quiet=True)
    return request.param, folder


def test_signals_have_every_head_of_every_block(run):
    name, folder = run
    rows = pd.read_parquet(folder / "signals" / "epoch-0000.parquet")
    first = rows[rows["step"] == rows["step"].min()]
    assert [len(values) for values in first["entropy"]] == BLOCKS[name]
    if name == "spikingresformer":
        assert (rows[rows["block"] == "stages.0.0.attention"]["slope"] == 4).all()


def test_eval_counts_operations_of_every_product(run):
    name, folder = run
    told = assess(open_run(folder))
    assert 0 <= told.top1 <= 100
    layers = told.activity.layers
    assert all(layer.firing_rate is None or 0 <= layer.firing_rate <= 1 for layer in layers.values())
    product = {"qkformer": "stages.2.0.attention", "spikingresformer": "stages.0.0.attention.map"}[name]
    assert layers[product].ann_macs > 0


def test_inspect_draws_the_maps_of_every_block(run):
    name, folder = run
    inspection = inspect_run(open_run(folder), images=1)
    assert [len(block.entropy) for block in inspection.blocks] == BLOCKS[name]
    assert inspection.figure.read_bytes().startswith(b"\x89PNG")


def test_the_trained_network_loads_with_its_rates(run):
    name, folder = run
    network = load(folder)
    assert network(torch.randn(2, 1, 8, 8)).isfinite().all()
    rates = [value for key, value in network.state_dict().items() if key.endswith(".rate")]
    assert len(rates) == (12 if name == "spikingresformer" else 0)
    assert all((rate >= 0).all() for rate in rates)
    assert card_of(open_run(folder))["time_steps"] == 2


@pytest.mark.parametrize("name", SETTINGS)
def test_check_reports_before_a_training(name):
    settings = {key: value for key, value in (TINY | SETTINGS[name]).items() if key != "max_steps_per_epoch"}
    report = check_recipe(load_recipe("digits", settings))
    assert len(report.parts) == 1 + len(BLOCKS[name])


def lively(name):
    """A small network whose nodes fire and whose normalisation has seen data."""
    torch.manual_seed(0)
    sizes = {"time_steps": 2, "image_size": 8, "in_channels": 1}
    build = {
        "qkformer": lambda: qkformer(depth=3, dim=16, heads=2, **sizes),
        "spikingresformer": lambda: spikingresformer(depths=(1, 1, 1), head_width=2, **sizes),
    }
    model = build[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight, 3.0)
            nn.init.normal_(module.bias, 0.5)
        elif isinstance(module, nn.Conv2d):
            module.reset_parameters()  # the smaller ones of SpikingResformer need many passes to be known by eval mode
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(32, 1, 8, 8))
    return model


def classes_of(model, images):
    with torch.no_grad():
        classes = copy.deepcopy(model).eval()(images).argmax(1)
    assert len(classes.unique()) > 1  # or agreeing would mean nothing
    return classes


@pytest.fixture
def images():
    return torch.randn(200, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_onnx_gives_the_same_classes(name, images, tmp_path):
    import onnxruntime

    model = lively(name)
    path = export(model, tmp_path / "a.onnx", "onnx", images[:2])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    assert (torch.from_numpy(logits).argmax(1) == classes_of(model, images)).double().mean() >= 0.99


@pytest.mark.parametrize("name", SETTINGS)
def test_the_deployment_form_gives_the_same_classes(name, images):
    model = lively(name)
    with torch.no_grad():
        assert (fuse(model)(images).argmax(1) == classes_of(model, images)).double().mean() >= 0.99
    assert formats(model) == ["onnx", "safetensors"]


@pytest.mark.parametrize("name", SETTINGS)
def test_check_finds_nothing_silent_in_a_lively_network(name):
    report = check(lively(name), torch.randn(8, 1, 8, 8), torch.arange(8))
    assert all(part.firing_rate > 0 for part in report.parts)
    assert not any("never ran" in problem for part in report.parts for problem in part.problems)


@pytest.mark.parametrize(("name", "parameters"), [("qkformer", 6_706_234), ("spikingresformer", 10_793_152)])
def test_recipes_ship_in_full_and_in_small(name, parameters):
    whole, small = (load_recipe(f"{name}-cifar10{ending}") for ending in ("", "-small"))
    assert {whole.name, small.name} <= set(shipped_recipes())
    with torch.device("meta"):
        network = whole.model.build(classes=10, size=32, channels=3)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert whole.model.name == small.model.name == name
    assert whole.about["choices"]
    assert small.train_images == 4000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.name": "qkformer", "model.depth": 2}, "at least 3, a block for each stage"),
        ({"model.name": "qkformer", "model.depth": 3, "model.stage_heads": 5}, "stage_heads .5. must divide a quarter"),
        ({"model.name": "spikingresformer", "model.size": "xl"}, "size"),
        ({"model.name": "spikingresformer", "model.head_width": 0}, "head_width"),
    ],
)
def test_a_recipe_with_impossible_sizes_names_them(settings, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("digits", settings)


def test_images_that_do_not_fit_are_told_when_the_network_is_built():
    part = load_recipe("digits", {"model.name": "spikingresformer"}).model
    with pytest.raises(ValueError, match="multiple of 4 in the cifar form, not 10"):
        part.build(classes=10, size=10, channels=1)
