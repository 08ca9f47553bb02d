import copy

import pytest
import torch
from spikingjelly.activation_based import functional, neuron
from torch import nn

from sage_snn import SAGE, Fixed, Learnable, find_layers
from sage_snn.control import is_node
from sage_snn.conversion import QCFS
from sage_snn.neurons import RateIF

NODES = {
    0.0: lambda threshold: neuron.IFNode(v_threshold=threshold, v_reset=None, step_mode="m"),
    0.5: lambda threshold: neuron.HalfThresholdIFNode(v_threshold=threshold, step_mode="m"),
}


def currents(dtype=torch.float64):
    return torch.randn(12, 3, 40, generator=torch.Generator().manual_seed(0), dtype=dtype) + 0.5


def test_spikes_are_as_high_as_the_threshold_and_what_is_left_over_stays():
    # 1.5, fires at 2 exactly and leaves 0; 1.5; 3.0 fires and leaves 1; 2.5 fires.
    x = torch.tensor([1.5, 0.5, 1.5, 1.5, 1.5]).unsqueeze(1)
    assert RateIF(2.0)(x).flatten().tolist() == [0.0, 2.0, 0.0, 2.0, 2.0]
    # From half the threshold the first current is enough.
    assert RateIF(2.0, start=0.5)(x).flatten().tolist() == [2.0, 0.0, 2.0, 2.0, 0.0]


@pytest.mark.parametrize("start", NODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spikes_and_gradients_are_spikingjellys(start, dtype):
    ours, theirs = RateIF(0.7, start).to(dtype), NODES[start](0.7)
    ours.threshold.fill_(0.7)
    x, y = (currents(dtype).requires_grad_() for _ in range(2))
    spikes, expected = ours(x), theirs(y)
    assert torch.equal(spikes / 0.7, expected)
    assert 0.2 < expected.mean() < 0.8
    weights = torch.cos(torch.arange(spikes.numel(), dtype=dtype)).view_as(spikes)
    (spikes * weights).sum().backward()
    (expected * weights * 0.7).sum().backward()
    assert torch.allclose(x.grad, y.grad, rtol=0, atol=1e-4 if dtype is torch.float32 else 1e-9)


@pytest.mark.parametrize("start", NODES)
def test_single_steps_are_the_multi_step_call_and_a_reset_begins_again(start):
    node, x = RateIF(0.7, start, step_mode="s"), currents(torch.float32)
    expected = RateIF(0.7, start)(x)
    for _ in range(2):
        assert torch.equal(torch.stack([node(step) for step in x]), expected)
        assert node.v is not None
        functional.reset_net(node)


def test_a_multi_step_call_keeps_nothing():
    node, x = RateIF(), currents(torch.float32)
    assert torch.equal(node(x), node(x))
    assert node.v is None


@pytest.mark.parametrize("steps", [4, 32])
def test_the_rate_times_the_height_is_the_clipped_current(steps):
    still = torch.linspace(-1.0, 3.0, 401, dtype=torch.float64)
    heights = RateIF(1.5).double()(still.expand(steps, -1)).mean(0)
    assert ((heights / 1.5 - (still / 1.5).clamp(0, 1)).abs() <= 1 / steps + 1e-12).all()
    assert heights.max() == 1.5


def test_loading_the_weights_of_the_ann_is_the_conversion():
    def network(activation):
        return nn.Sequential(nn.Linear(3, 5), activation)

    ann, snn = network(QCFS(4, 2.5)), network(RateIF(start=0.5))
    snn.load_state_dict(ann.state_dict())
    assert "threshold=2.5, start=0.5, step_mode=m" in repr(snn[1])
    assert [name for name, _ in snn.named_parameters()] == ["0.weight", "0.bias"]
    x = torch.randn(200, 3)
    assert torch.allclose(snn(x.expand(4, -1, -1)).mean(0), ann(x), atol=1e-5)


def test_membranes_are_not_in_half_precision():
    steps = 400
    small = torch.full((steps, 1), 0.01, dtype=torch.bfloat16)
    spikes = RateIF()(small)
    assert spikes.dtype is torch.bfloat16
    assert spikes.sum() == int(steps * small[0].float())  # in bfloat16 a membrane would stop below 1


def test_policies_hold_it_and_say_how_it_runs():
    network = nn.Sequential(nn.Linear(4, 4), RateIF(), nn.Linear(4, 4), RateIF())
    assert [is_node(module) for module in network] == [False, True, False, True]
    with Fixed(network, slope=2.0) as fixed:
        assert [node.surrogate_function.alpha for node in (network[1], network[3])] == [2.0, 2.0]
        assert "2 nodes of ours, RateIF, slope a number: a plain loop over time" in str(fixed)
    with Learnable(network) as learnable:
        assert "2 nodes of ours, RateIF, slope in a tensor: a plain loop over time" in str(learnable)
        network(torch.rand(3, 2, 4)).sum().backward()
        assert next(learnable.parameters()).grad.item() != 0
    with pytest.raises(ValueError, match=r"sage_snn\.neurons\.LIFNode in place of RateIF"):
        Learnable(network, per="time", time_steps=3)
    with SAGE(network, warmup_steps=0, groups=find_layers(network), source="firing") as sage:
        network(torch.rand(3, 2, 4))
        sage.step()
        assert len(sage.readings) == 2


def test_copies_have_a_surrogate_of_their_own():
    node = RateIF()
    assert copy.deepcopy(node).surrogate_function is not node.surrogate_function
    assert RateIF().surrogate_function is not node.surrogate_function


def test_a_threshold_must_be_positive():
    with pytest.raises(ValueError, match="threshold must be positive, not 0"):
        RateIF(0.0)
