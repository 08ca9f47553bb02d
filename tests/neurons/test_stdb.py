from math import exp

import pytest
import torch
from spikingjelly.activation_based import surrogate
from torch import nn

from sage_snn import Fixed, Learnable
from sage_snn.neurons import SpikeTime, STDBNode

# With threshold 2 and leak 0.5 the membrane before each step's input is 0, 3, 0.5, 2.05, 0.025:
# 0.5 * 3 + 1 - 2; 0.5 * 0.5 + 1.8; 0.5 * 2.05 + 1 - 2.
CURRENTS, SPIKES = (3.0, 1.0, 1.8, 1.0, 0.0), [0.0, 1.0, 0.0, 1.0, 0.0]
WAITED = [1, 2, 1, 2, 1]  # steps since the last spike; the first is counted from before the first step


def column(values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def gradients(node, currents=CURRENTS):
    """(T, T): of the spike of each step by the current of each step."""
    return torch.autograd.functional.jacobian(lambda x: node(x)[:, 0], column(currents))[:, :, 0]


def test_a_spike_train_worked_out_by_hand():
    assert STDBNode(2.0, 0.5).double()(column(CURRENTS)).flatten().tolist() == SPIKES


def test_a_layer_answers_one_step_late_and_two_layers_two():
    x = column([5.0, 0.0, 0.0, 0.0])
    assert STDBNode(4.0)(x).flatten().tolist() == [0.0, 1.0, 0.0, 0.0]
    layers = nn.Sequential(STDBNode(4.0), STDBNode(0.9))
    assert layers(x).flatten().tolist() == [0.0, 0.0, 1.0, 0.0]


def test_a_membrane_at_the_threshold_does_not_fire():
    assert STDBNode()(column([1.0, 0.5, 0.0])).flatten().tolist() == [0.0, 0.0, 1.0]


def test_the_surrogate_falls_with_the_time_since_the_last_spike():
    node = STDBNode(2.0, 0.5, SpikeTime(alpha=0.4, beta=0.5)).double()
    by_current = gradients(node)
    for step in range(1, 5):
        # A current of the step before moves U / threshold by 1 / 2, an earlier one by half as much a step.
        expected = [0.4 * exp(-0.5 * WAITED[step]) / 2 * 0.5**age for age in reversed(range(step))]
        assert by_current[step, :step].tolist() == pytest.approx(expected)
    assert not by_current.triu().any()  # a step's own current comes too late for its spike


def test_a_neuron_that_never_fired_waits_since_before_the_first_step():
    by_current = gradients(STDBNode().double(), (0.1, 0.1, 0.1, 0.1))
    assert [by_current[step, step - 1].item() for step in (1, 2, 3)] == pytest.approx(
        [0.3 * exp(-0.01 * waited) for waited in (2, 3, 4)]
    )


def test_other_surrogates_are_scaled_as_in_the_authors_code():
    by_current = gradients(STDBNode(2.0, 0.5, surrogate.PiecewiseQuadratic(1.0)).double())
    # 0.3 * (1 - |U / 2 - 1|) / 2 for U = 3, 0.5, 2.05, 0.025.
    expected = [0.3 * share / 2 for share in (0.5, 0.25, 0.975, 0.0125)]
    assert by_current.diagonal(-1).tolist() == pytest.approx(expected)


def test_a_call_keeps_nothing_and_membranes_are_not_in_half_precision():
    node, x = STDBNode(), torch.full((402, 1), 0.01, dtype=torch.bfloat16)
    spikes = node(x)
    assert torch.equal(spikes, node(x))
    assert spikes.dtype is torch.bfloat16
    assert spikes.sum() == int(400 * x[0].float())


def test_the_threshold_is_saved_and_not_trained():
    node, other = STDBNode(0.7), STDBNode()
    assert "threshold=0.7, leak=1" in repr(node)
    assert "SpikeTime(alpha=0.3, beta=0.01)" in repr(node)
    assert not list(node.parameters())
    other.load_state_dict(node.state_dict())
    assert other.threshold.item() == pytest.approx(0.7)
    with pytest.raises(ValueError, match="threshold must be positive, not 0"):
        STDBNode(0.0)


def test_a_fixed_slope_is_the_height_of_the_spike_time_surrogate():
    node = STDBNode().double()
    network = nn.Sequential(node)
    with Fixed(network, slope=0.9, absolute=True) as fixed:
        assert gradients(node)[1, 0].item() == pytest.approx(0.9 * exp(-0.02))
        assert "1 nodes of ours, STDBNode, slope a number: a plain loop over time" in str(fixed)
    with Fixed(network, slope=8.0):  # twice what its base is
        assert gradients(node)[1, 0].item() == pytest.approx(0.6 * exp(-0.02))
    assert gradients(node)[1, 0].item() == pytest.approx(0.3 * exp(-0.02))


def test_a_slope_is_learnt_where_its_gradient_is_defined():
    with pytest.raises(ValueError, match="no gradient is defined for the slope of SpikeTime; use one of Sigmoid"):
        Learnable(nn.Sequential(STDBNode()))
    node = STDBNode(surrogate_function=surrogate.PiecewiseQuadratic(1.0)).double()
    with Learnable(nn.Sequential(node)) as learnable:
        node(column([1.2, 0.0])).sum().backward()
        # Only the second step's membrane, 0.2 above the threshold, is inside the triangle: surrogate times distance.
        # The first step's, at distance -1, is at its foot.
        assert next(learnable.parameters()).grad.item() == pytest.approx(0.3 * 0.8 * 0.2)
