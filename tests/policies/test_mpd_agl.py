"""MPD_AGL: widths from the normalisation, against numbers worked out by hand and a plain loop over the weights."""

import math

import pytest
import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from spikingjelly.activation_based.model import sew_resnet
from torch import nn

from sage_snn import MPD_AGL, Group, LIFNode, find_layers
from sage_snn.control import find_norms, nodes_of
from sage_snn.deploy import accelerate
from sage_snn.layers import NormLIF, StatelessLIF, ThresholdNorm
from sage_snn.models import resnet19, vgg11

TAU = 4 / 3  # the membrane keeps a quarter


class Pair(nn.Module):
    """Two layers of three neurons, the second with tdBN and another surrogate: (T, B, 3) -> (T, B, 3)."""

    def __init__(self, steps):
        super().__init__()
        torch.manual_seed(0)
        lif = {"tau": TAU, "decay_input": False, "step_mode": "m"}
        self.time_steps = steps
        self.first = NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), StatelessLIF(**lif))
        second = StatelessLIF(**lif, v_threshold=0.5, surrogate_function=surrogate.Rect(1.0))
        self.second = NormLIF(nn.Conv2d(3, 3, 1), ThresholdNorm(3, 0.5), second)
        self.double()

    def forward(self, x):
        return self.second(self.first(x))


def batch(seed, steps):
    return torch.randn(steps, 4, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(model, policy, steps, start=0):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for seed in range(start, start + steps):
        optimizer.zero_grad()
        (model(batch(seed, model.time_steps)).mean() - 0.7).square().backward()
        optimizer.step()
        if policy is not None:
            policy.step()
            yield


def test_slopes_are_those_worked_out_by_hand():
    model = Pair(3)
    nn.init.constant_(model.first.norm.weight, -0.5)
    model.second.norm.weight.data = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    growth = math.sqrt(1 + 0.25**2)
    with MPD_AGL(model) as policy:
        # A rectangle of width 1 is 1 high; a sigmoid of slope 4 too.
        assert model.first.lif.slope().tolist() == pytest.approx([4, 4 / growth, 4 / growth])
        # Width 2 * 2 * 0.5.
        assert model.second.lif.slope().tolist() == pytest.approx([0.5, 0.5 / growth, 0.5 / growth])
        assert policy.slopes.tolist() == pytest.approx([(4 + 8 / growth) / 3, 4 * (0.5 + 1 / growth) / 3])
    assert model.first.lif.slope is None


def test_slopes_follow_the_weights_over_a_training():
    model = Pair(3)
    policy, seen = MPD_AGL(model), set()
    for _ in train(model, policy, 100):
        expected = []
        for norm, factor, height in ((model.first.norm, 1.0, 0.25), (model.second.norm, 0.5, 1.0)):
            gain = sum(abs(weight) for weight in norm.weight.tolist()) / 3 * factor
            expected.append([1 / (2 * gain * height * size) for size in (1, math.sqrt(17) / 4, math.sqrt(17) / 4)])
        assert torch.allclose(policy.node_slopes, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
        seen.add(float(policy.node_slopes[0, 0]))
    assert len(seen) == 100
    policy.remove()


def test_widths_that_do_not_move_change_no_bit():
    plain, held = Pair(1), Pair(1)
    for model in (plain, held):
        for norm, weight in ((model.first.norm, 0.5), (model.second.norm, 1.0)):
            nn.init.constant_(norm.weight, weight)
            norm.weight.requires_grad_(False)
    list(train(plain, None, 20))
    policy = MPD_AGL(held)
    list(train(held, policy, 20))
    assert policy.slopes.tolist() == [4.0, 4.0]
    for name, value in plain.state_dict().items():
        assert torch.equal(value, held.state_dict()[name]), name


def test_a_resumed_training_goes_on_to_the_same_bits():
    model, again = Pair(2), Pair(2)
    policy = MPD_AGL(model)
    list(train(model, policy, 5))
    resumed = MPD_AGL(again)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(policy.state_dict())
    assert torch.equal(resumed.node_slopes, policy.node_slopes)
    for m, p in ((model, policy), (again, resumed)):
        list(train(m, p, 5, start=5))
    assert torch.equal(resumed.node_slopes, policy.node_slopes)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="time_steps: 2 there, 3 here"):
        MPD_AGL(Pair(3)).load_state_dict(policy.state_dict())


def test_a_layer_whose_normalisation_has_shrunk_to_nothing_keeps_a_finite_slope():
    model = Pair(2)
    nn.init.zeros_(model.first.norm.weight)
    with MPD_AGL(model) as policy:
        assert policy.node_slopes.isfinite().all()


def test_norms_are_found_in_our_networks_and_in_spikingjellys(ours):
    model = ours()
    assert len(find_norms(model)) == len(nodes_of(model)) - 2  # the node after each product of attention has none
    with MPD_AGL(model) as policy:
        assert "; 2 others keep their own" in str(policy)
        assert model.blocks[0].attention.lif.slope is None
    model = resnet19(width=0.0625, image_size=16, time_steps=2)
    with MPD_AGL(model) as policy:
        assert len(policy.node_slopes) == len(nodes_of(model)) - 1

    jelly = sew_resnet.sew_resnet18(spiking_neuron=neuron.LIFNode, cnf="ADD", surrogate_function=surrogate.ATan())
    functional.set_step_mode(jelly, "m")
    assert len(find_norms(jelly)) == len(nodes_of(jelly))
    assert find_norms(jelly)[jelly.layer1[0].sn2] is jelly.layer1[0].bn2
    assert find_norms(jelly)[jelly.layer2[0].downsample_sn] is jelly.layer2[0].downsample[1]
    theirs = r"sage_snn\.neurons\.LIFNode in place of LIFNode of spikingjelly\.activation_based\.neuron"
    with pytest.raises(ValueError, match=theirs + r".*spiking_neuron=sage_snn\.LIFNode, .*deploy\.accelerate\(model\)"):
        MPD_AGL(jelly, time_steps=2)
    with MPD_AGL(accelerate(jelly), time_steps=2):
        jelly(torch.randn(2, 2, 3, 32, 32)).sum().backward()
    functional.reset_net(jelly)


def test_networks_that_do_not_tell_are_refused_with_the_cure():
    bare = vgg11(width=0.0625, image_size=16, time_steps=2)
    with pytest.raises(ValueError, match=r"no BatchNorm stands directly before a spiking node in VGG.*norm=batch_norm"):
        MPD_AGL(bare)
    model = resnet19(width=0.0625, image_size=16, time_steps=2)
    with pytest.raises(ValueError, match="no BatchNorm stands directly before lif; leave such nodes out of groups="):
        MPD_AGL(model, groups=find_layers(model))
    with pytest.raises(ValueError, match="pass time_steps="):
        MPD_AGL(nn.Sequential(nn.BatchNorm1d(2), LIFNode(step_mode="m")))
    for network in (bare, model):
        assert all(node.slope is None for node in nodes_of(network))
    first = [Group([node], name=name) for name, node in list(model.named_modules()) if name == "stem.0.lif"]
    with MPD_AGL(model, groups=first) as policy:
        assert len(policy.slopes) == 1
