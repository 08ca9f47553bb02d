"""Runs of convolutional networks: evaluated, looked into, checked and exported like those of transformers."""

import io
import json

import pytest
import torch
from rich.console import Console

from sage_snn.deploy import export
from sage_snn.neurons import DietLIF, RateIF
from sage_snn.runs import assess, check_run, inspect_run
from sage_snn.runs.run import open_run
from sage_snn.training import train

SETTINGS = {
    "train_images": 64,
    "test_images": 30,
    "epochs": 1,
    "warmup_epochs": 0,
    "cooldown_epochs": 0,
    "batch_size": 16,
    "threads": 1,
    "model.time_steps": 2,
}
# A network, its neuron and a policy that holds its slopes.
RUNS = {
    "tdbn": {"model.name": "resnet19", "model.width": 0.0625, "model.neuron": "tdbn", "model.norm": "threshold"},
    "tet": {"model.name": "resnet19", "model.width": 0.0625, "model.neuron": "tet", "loss.kind": "tet"},
    "diet": {
        "model.name": "vgg11",
        "model.width": 0.0625,
        "model.neuron": "diet",
        "loss.kind": "sum_cross_entropy",
    },
    "stdb": {"model.name": "vgg11", "model.width": 0.0625, "model.neuron": "stdb", "model.time_steps": 14},
    "rate": {"model.name": "resnet20", "model.width": 0.25, "model.neuron": "rate"},
}


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers") / request.param
    train(
        "digits",
        folder,
        settings=SETTINGS | {"policy.kind": "fixed", "policy.slope": 6.0} | RUNS[request.param],
        quiet=True,
    )
    return open_run(folder)


def test_every_layer_is_told_with_its_firing_slope_and_threshold(run):
    inspection, network = inspect_run(run), run.network()
    layers = {layer.name: layer for layer in inspection.layers}
    rates = run.folder.metrics()[-1]["firing_rates"]
    assert list(layers) == list(rates)
    assert all(layer.slope == 6.0 for layer in inspection.layers)
    # Both are of test images, one of the first batch and one of all thirty: alike, and exactly so where nothing fires.
    assert all(abs(layers[name].firing_rate - rate) < 0.15 for name, rate in rates.items())
    assert all(0 <= layer.silent <= 1 for layer in inspection.layers)
    assert all(layer.silent == 1 for layer in inspection.layers if layer.firing_rate == 0)
    for name, module in network.named_modules():
        if isinstance(module, DietLIF | RateIF):
            assert layers[name].threshold == module.threshold.item()
    told = json.loads(json.dumps(inspection.as_dict()))
    assert told["layers"][0]["neurons"] == inspection.layers[0].neurons
    screen = io.StringIO()
    Console(file=screen, width=160).print(inspection)
    assert "never fire" in screen.getvalue()
    assert all(name in screen.getvalue() for name in layers)


def test_it_is_assessed_checked_and_exported(run, tmp_path):
    assessment = assess(run)
    assert assessment.images == 30
    assert assessment.top1 == pytest.approx(run.folder.summary()["last_top1"])
    assert assessment.activity.sops + assessment.activity.macs > 0
    report = check_run(run)
    assert [part.name for part in report.parts] == [layer.name for layer in inspect_run(run).layers]
    network, images = run.network(), torch.cat([batch.images for batch in run.test_loader(4).epoch(0)])
    assert export(network, tmp_path / "net.onnx", "onnx", images).is_file()


@pytest.mark.parametrize("name", ["tdbn", "tet", "diet", "rate"])
def test_slopes_are_learnt_on_all_of_them(name, tmp_path):
    settings = SETTINGS | {"policy.kind": "learnable", "policy.per": "layer", "lr": 0.05} | RUNS[name]
    train("digits", tmp_path / "run", settings=settings, quiet=True)
    slopes = open_run(tmp_path / "run").policy_state["slopes"]
    assert len(slopes) > 5
    assert (slopes != 4).any()
