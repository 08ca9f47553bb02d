"""Measured networks fire as they say, and SpikingJelly's have the same weights and give the same answers."""

import json

import pytest
import torch
from spikingjelly.activation_based import functional
from torch import nn
from typer.testing import CliRunner

from sage_snn.bench import bench, measures
from sage_snn.bench.contestants import ResNetSize, Size
from sage_snn.bench.firing import RATE, Stated, bring_to, rates_of
from sage_snn.bench.peers import OFFICIAL, OWN, peers
from sage_snn.bench.trained import Trained, training_batch
from sage_snn.cli import app
from sage_snn.control import is_node, watching
from sage_snn.layers import StatelessLIF
from sage_snn.models import spikformer
from sage_snn.runs import RunError, open_run

SMALL = Size(32, 4, 8, depth=2, time_steps=3, image=16)
TRAINED = "shipped:digits"
RESNET = ResNetSize(0.125, 8, time_steps=3, image=16)


@torch.no_grad()
def node_rates(network, images):
    rates = {}
    nodes = [(name, node) for name, node in network.named_modules() if is_node(node)]
    with watching((node, lambda out, name=name: rates.update({name: out.mean().item()})) for name, node in nodes):
        network(images)
    return rates


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("rate", [0.1, 0.2])
@pytest.mark.parametrize("size", [SMALL, RESNET], ids=["Spikformer", "ResNet-19"])
def test_every_neuron_behind_a_normalisation_fires_at_the_stated_rate(size, rate, training):
    network, images = size.ours(), size.data()[0]
    bring_to(rate, network, images)
    found = node_rates(network.train(training), images)
    without_norm = {name for name in found if name == "lif" or name.endswith("attention.lif")}
    assert len(found) > len(without_norm) > 0
    for name in found.keys() - without_norm:
        assert found[name] == pytest.approx(rate, abs=0.02), name


def test_drawn_weights_are_nearly_silent_in_evaluation_and_stated_ones_are_not():
    images = SMALL.data()[0]
    assert max(rates_of(SMALL.ours().eval(), images).values()) < 0.01
    rates = rates_of(Stated(SMALL).ours().eval(), images)
    assert list(rates) == ["stem", "blocks", "into stem", "into blocks"]
    assert rates["stem"] == pytest.approx(RATE, abs=0.005)
    assert 0.6 * RATE < rates["blocks"] <= 1.05 * RATE  # the attention's own neuron has no normalisation to move
    assert min(rates["into stem"], rates["into blocks"]) > RATE


def test_a_part_fires_as_the_mean_of_its_places():
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.stem = nn.Conv1d(1, 1, 1), nn.Sequential(nn.Conv1d(1, 1, 1, bias=False), StatelessLIF())
            nn.init.ones_(self.stem[0].weight)

        def forward(self, x):
            self.first(x)
            return self.stem(x)

    currents = torch.tensor([3.0, 0.0, 1.0, 3.0]).view(1, 1, 4)  # half of it is charged: 1.5 fires, 0.5 does not
    assert rates_of(Given(), currents) == {"stem": 0.5, "into stem": 0.75}


def test_neurons_that_are_given_nothing_stay_silent():
    network = SMALL.ours()
    for block in network.blocks:
        nn.init.zeros_(block.mlp.first.synapse.weight)
    bring_to(0.1, network, SMALL.data()[0])
    rates = node_rates(network, SMALL.data()[0])
    assert rates["blocks.0.mlp.first.lif"] == 0
    assert rates["blocks.0.attention.query.lif"] == pytest.approx(0.1, abs=0.02)


def test_looking_at_rates_and_bringing_to_them_leaves_nothing_behind():
    network, images = SMALL.ours(), SMALL.data()[0]
    bring_to(0.1, network, images)
    assert all(not node._forward_pre_hooks for node in network.modules())
    assert {norm.momentum for norm in network.modules() if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)} == {0.1}
    before = {name: value.clone() for name, value in network.state_dict().items()}
    rates_of(network.train(), images)
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())


FORMS = {
    "cifar": {"patch_size": 4},
    "patches of 2, one channel": {"patch_size": 2, "in_channels": 1, "image_size": 9, "num_classes": 7},
    "imagenet": {"patch_size": 16, "form": "imagenet", "image_size": 32, "mlp_ratio": 2.0},
}


def off_default(network):
    """With biases and statistics as a training leaves them."""
    generator = torch.Generator().manual_seed(2)
    for module in network.modules():
        for name in ("bias", "running_mean"):
            value = getattr(module, name, None)
            if isinstance(value, torch.Tensor):
                value.data += 0.1 * torch.randn(value.shape, generator=generator)
    return network


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_in_the_official_order_spikingjellys_layers_compute_the_same_function_in_float64(form, training):
    torch.manual_seed(0)
    options = {"depth": 2, "dim": 32, "heads": 4, "time_steps": 3, "image_size": 16} | form
    ours = spikformer(**options)
    images = torch.randn(8, ours.in_channels, ours.image_size, ours.image_size)
    bring_to(0.15, ours, images)
    ours = off_default(ours).double().train(training)
    theirs = peers(ours)[OFFICIAL]()
    logits, expected = ours(images.double()), theirs(images.double()).mean(0)
    assert rates_of(ours, images.double())["blocks"] > 0.02
    assert torch.allclose(logits, expected, rtol=0, atol=1e-9)
    for answer in (logits, expected):
        answer.square().sum().backward()
    for mine, other in ((ours.stem.stages[0].synapse, theirs.patch_embed.stages[0]), (ours.head, theirs.head)):
        gradient = next(other.parameters()).grad
        assert gradient.abs().max() > 1e-6
        assert torch.allclose(mine.weight.grad, gradient, rtol=0, atol=1e-9)


@torch.no_grad()
def test_in_float32_both_contestants_agree_by_counting():
    size = Size(64, 8, 100, depth=2, time_steps=4, image=16)
    ours, images = Stated(size).ours().eval(), size.data()[0]
    ours.head.bias -= ours(images).mean(0)  # so that classes differ from image to image
    theirs = peers(ours)[OFFICIAL]()
    sums = ours.stem(images, 4), theirs.patch_embed(images.expand(4, *images.shape)).flatten(3)
    functional.reset_net(theirs)
    assert (sums[0] != sums[1]).double().mean() <= 1e-5
    assert sums[0].ne(0).double().mean() > 0.1
    classes = ours(images).argmax(1)
    assert len(classes.unique()) > 5
    assert (classes == theirs(images).mean(0).argmax(1)).double().mean() >= 0.99


@torch.no_grad()
def test_spikingjellys_own_order_has_the_same_weights_and_is_another_function():
    ours = Stated(SMALL).ours().eval()
    own, official = (peers(ours)[name]() for name in (OWN, OFFICIAL))
    images = SMALL.data()[0]
    assert all(a.equal(b) for a, b in zip(own.parameters(), official.parameters(), strict=True))
    assert not torch.allclose(own(images), official(images), atol=1e-3)
    functional.reset_net(own)
    assert own.patch_embed(images.unsqueeze(0)).shape[-2:] == (4, 4)


def test_the_residual_networks_are_the_same_on_both_sides_in_float64():
    size = ResNetSize(0.125, 4, time_steps=3, image=16)
    ours = size.ours().double()
    theirs = peers(ours)[OWN]()
    images, labels = size.data()
    logits, expected = ours(images.double()), theirs(images.double()).mean(0)
    assert torch.allclose(logits, expected, rtol=0, atol=1e-9)
    for answer in (logits, expected):
        torch.nn.functional.cross_entropy(answer, labels).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=0, atol=1e-9)
    assert ours.stem[0].synapse.weight.grad.abs().max() > 1e-6


@pytest.mark.slow
def test_a_bench_of_a_run_states_the_rates_of_its_network(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "REPETITIONS", 1)
    monkeypatch.setattr(bench, "training_batch", lambda run: 2)
    out = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["bench", "--quick", "--device", "cpu", "--run", TRAINED, "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["rows"]
    assert list(dict.fromkeys(row["measure"] for row in rows)) == ["training step", "SAGE overhead", "inference"]
    assert [row["contestant"] for row in rows if row["measure"] == "inference"] == [
        "SpikingJelly",
        "SpikingJelly, official order",
        "SpikingJelly, channels last",
        "SpikingJelly, official order, channels last",
        "ours",
        "ours, fused",
        "ours, fused, int8",
    ]
    run = open_run(TRAINED)
    images = next(iter(run.test_loader(1).epoch(0))).images
    expected = rates_of(run.network(), images)
    assert rows[-1]["rates"] == expected
    assert all(0.03 < expected[part] < 0.1 for part in ("stem", "blocks"))
    output = " ".join(result.output.split())
    told = f"firing stem {expected['stem']:.1%}, blocks {expected['blocks']:.1%}; not zero into stem"
    assert f"inference: digits (2-64), batch 1, T=4, 16 tokens; {told}" in output
    assert "weights of the run digits" in output


def test_a_run_gives_its_weights_to_both_sides_and_its_images():
    run = open_run(TRAINED)
    contest = Trained(run, 24)
    images, labels = contest.data()
    assert (contest.batch, images.shape[1:], labels.shape) == (24, (1, 8, 8), (24,))
    assert training_batch(run) == 32
    ours = contest.ours()
    assert ours.training
    assert ours.head.weight.equal(run.network().head.weight)
    assert contest.theirs().head.weight.equal(ours.head.weight)
    assert contest.ours() is not ours


def test_networks_without_a_twin_are_refused(monkeypatch):
    run = open_run(TRAINED)
    network = run.network()
    network.stem.position.lif.set_constants(threshold=torch.tensor(0.9))
    monkeypatch.setattr(run, "network", RESNET.ours)
    with pytest.raises(RunError, match="give --run a run of a Spikformer"):
        Trained(run, 1).ours()
    monkeypatch.setattr(run, "network", lambda: network)
    with pytest.raises(RunError, match="trained constants, which SpikingJelly's have not"):
        Trained(run, 1).ours()


def test_rows_of_a_stated_rate_tell_it():
    rows = [*measures.training((Stated(SMALL),), 1), *measures.inferring((Stated(SMALL),), 1)]
    for row in rows:
        assert row.rates["stem"] == pytest.approx(RATE, abs=0.005)
