import math

import pytest
import torch
from spikingjelly.activation_based import surrogate
from spikingjelly.activation_based.model.spikformer import Spikformer as SpikingJellySpikformer

from sage_snn import SAGE, LIFNode, check
from sage_snn.models import spikformer


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return spikformer(depth=2, dim=32, heads=4, time_steps=2, image_size=16)


def test_a_healthy_model_is_ok_and_prints_as_a_table(model, batch):
    report = check(model, *batch)
    assert report.ok
    assert [part.name for part in report.parts] == ["outside blocks", "blocks.0.attention", "blocks.1.attention"]
    assert [part.nodes for part in report.parts] == [5, 7, 7]
    lines = str(report).splitlines()
    assert lines[0].split()[:4] == ["part", "nodes", "firing", "silent"]
    assert lines[-1].endswith("nothing to worry about")


def test_the_model_is_left_as_it_was(model, batch):
    with SAGE(model, warmup_steps=0) as sage:
        before = {k: v.clone() for k, v in model.state_dict().items()}
        check(model, *batch)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())
        with pytest.raises(RuntimeError, match="before any forward"):
            sage.step()


def test_a_surrogate_without_gradient_is_reported_in_its_block(model, batch):
    for node in model.blocks[1].modules():
        if isinstance(node, LIFNode):
            node.surrogate_function = surrogate.PiecewiseQuadratic(alpha=1e6)
    report = check(model, *batch)
    assert not report.ok
    assert "zero gradient" in report.parts[2].problems
    assert "zero gradient" not in report.parts[1].problems


def test_a_tiny_slope_vanishes_and_a_huge_one_explodes(model, batch):
    model.blocks[0].mlp.first.lif.surrogate_function = surrogate.SuperSpike(alpha=1e-7)
    model.blocks[1].mlp.first.lif.surrogate_function = surrogate.SuperSpike(alpha=1e8)
    report = check(model, *batch)
    assert "vanishing gradient" in report.parts[1].problems
    assert "exploding gradient" in report.parts[2].problems


def test_a_broken_weight_shows_as_non_finite(model, batch):
    with torch.no_grad():
        model.blocks[1].mlp.second.synapse.bias[0] = math.nan
        model.blocks[1].mlp.second.norm.eval()
    report = check(model, *batch)
    assert any("non-finite gradient" in part.problems for part in report.parts)
    assert not report.ok


def test_a_head_that_never_fires_is_dead(model, batch):
    with torch.no_grad():  # head 2 of block 0: channels 16 to 23 of the query
        model.blocks[0].attention.query.norm.weight[16:24] = 0
        model.blocks[0].attention.query.norm.bias[16:24] = -1
    report = check(model, *batch)
    assert report.parts[1].dead_heads == [2]
    assert report.parts[2].dead_heads == []
    assert "dead heads" in report.parts[1].problems


def test_silent_neurons_are_counted(model, batch):
    with torch.no_grad():
        model.stem.stages[0].norm.bias[:] = -10
        model.stem.stages[0].norm.weight[:] = 0
    report = check(model, *batch)
    first = model.stem.stages[0].norm.num_features * 16 * 16
    everyone = sum(n * s * s for n, s in ((4, 16), (8, 16), (16, 16), (32, 8), (32, 4)))
    assert report.parts[0].silent >= first / everyone


def test_spikingjellys_model_can_be_checked_too(batch):
    model = SpikingJellySpikformer(
        T=2, img_size_h=16, img_size_w=16, patch_size=4, embed_dims=32, num_heads=4, depths=2, num_classes=10
    )
    assert [part.nodes for part in check(model, *batch).parts] == [5, 5, 5]


class Shortcut(torch.nn.Module):
    """A node that passes no gradient on, alone or with a shortcut around it, after a block that check() can find."""

    def __init__(self, shortcut):
        super().__init__()
        torch.manual_seed(0)
        self.network, self.shortcut = spikformer(depth=1, dim=32, heads=4, time_steps=2, image_size=16), shortcut
        self.lif = LIFNode(step_mode="m", surrogate_function=surrogate.PiecewiseQuadratic(alpha=1e6))

    def forward(self, x):
        features = self.network.forward_features(x)
        spikes = self.lif(features)
        return self.network.head((features + spikes if self.shortcut else spikes).mean(0))


@pytest.mark.parametrize("shortcut", [False, True])
def test_a_shortcut_does_not_hide_a_node_without_gradient(batch, shortcut):
    report = check(Shortcut(shortcut), *batch)
    assert "zero gradient" in report.parts[0].problems


class Memoryless(torch.nn.Module):
    """A node that knows no step mode."""

    def __init__(self, v_threshold=1.0, **unused):
        super().__init__()
        self.v_threshold, self.surrogate_function = v_threshold, surrogate.Sigmoid(4.0)

    def forward(self, x):
        return self.surrogate_function(x - self.v_threshold)


def test_nodes_without_a_step_mode_are_looked_at_too(batch):
    model = spikformer(depth=1, dim=32, heads=4, time_steps=2, image_size=16, neuron=Memoryless)
    assert check(model, *batch).parts[0].firing_rate > 0


def test_a_model_can_be_checked_between_a_pass_and_its_reset(batch):
    model = SpikingJellySpikformer(
        T=2, img_size_h=16, img_size_w=16, num_classes=10, embed_dims=32, num_heads=4, depths=1
    )
    model(batch[0])
    assert math.isfinite(check(model, *batch).loss)


class Pair(torch.nn.Module):
    """Returns logits and features, as some repositories do."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x), self.network.forward_features(x)


def test_a_model_that_returns_a_tuple_wants_an_output(ours, images):
    labels = torch.arange(4)
    with pytest.raises(ValueError, match=r"returns a tuple, not a tensor of logits; pass output="):
        check(Pair(ours()), images, labels)
    report = check(Pair(ours()), images, labels, output=lambda returned: returned[0])
    assert report.loss == pytest.approx(check(ours(), images, labels).loss)


def test_a_loss_of_ones_own_is_used(ours, images):
    report = check(ours(), images, torch.zeros(4, 10), loss=torch.nn.functional.mse_loss)
    with torch.no_grad():
        assert report.loss == pytest.approx(float(ours().train()(images).square().mean()))


def test_a_network_without_attention_is_checked_layer_by_layer():
    from spikingjelly.activation_based import layer

    network = torch.nn.Sequential(layer.Linear(6, 8, step_mode="m"), LIFNode(step_mode="m"), torch.nn.Linear(8, 3))
    report = check(network, torch.rand(2, 4, 6), torch.tensor([0, 1, 2, 0]))
    assert [part.name for part in report.parts] == ["1"]
    assert report.parts[0].dead_heads == []
