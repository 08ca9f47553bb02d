"""What policies put on a node: slopes that broadcast, constants of the network, readers of membranes and gradients."""

import copy

import pytest
import torch
from spikingjelly.activation_based import neuron, surrogate
from torch import nn

from sage_snn.deploy import accelerate
from sage_snn.layers import NormLIF
from sage_snn.neurons import LIFNode

T, B, C, N = 3, 2, 4, 10


def currents(*shape, seed=0):
    return torch.randn(shape or (T, B, C, N), generator=torch.Generator().manual_seed(seed)).double() * 1.5 + 0.4


def stateless(**options):
    return LIFNode(step_mode="m", carry_state=False, **options)


def layer(node):
    return NormLIF(nn.Identity(), nn.BatchNorm1d(C).double(), node)


def backward(module, x):
    """Spikes and the gradient of the input."""
    x = x.clone().requires_grad_()
    spikes = module(x)
    (spikes * torch.cos(torch.arange(spikes.numel())).view_as(spikes)).sum().backward()
    return [spikes.detach(), x.grad]


def assert_equal(found, expected):
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class PerToken:
    """A slope whose size follows the batch."""

    def __init__(self):
        self.sizes = []

    def begin(self, sizes):
        self.sizes.append(sizes)
        return torch.linspace(2, 5, sizes[1] * sizes[3]).double().view(1, sizes[1], 1, sizes[3])


@pytest.mark.parametrize("wrap", [lambda node: node, layer], ids=["lone", "fused"])
def test_a_slope_that_begins_is_told_the_sizes_of_every_pass(wrap):
    node = stateless()
    module, node.slope = wrap(node), PerToken()
    for batch in (2, 3):
        grads = backward(module, currents(T, batch, C, 2, 5))[1]
    assert node.slope.sizes == [(T, 2, C, 10), (T, 3, C, 10)]
    node.slope = None
    assert not torch.equal(grads, backward(module, currents(T, batch, C, 2, 5))[1])


def test_currents_with_fewer_axes_have_one_channel_and_one_position():
    node = stateless()
    node.slope = PerToken()
    assert backward(node, currents(T, 7))[1].abs().sum() > 0
    assert backward(node, currents(T, 7, 5))[1].abs().sum() > 0
    assert node.slope.sizes == [(T, 7, 1, 1), (T, 7, 5, 1)]


def test_stored_membranes_have_the_slope_and_the_threshold_of_their_step():
    found = []
    for store in (False, True):
        node, seen = stateless(store_v_seq=store), []
        node.slope = lambda: torch.linspace(2, 4, T * N).double().view(T, 1, 1, N)
        node.set_constants(torch.tensor([0.8, 0.5, 1.2]).double(), torch.tensor(1.7).double())
        node.membranes, node.gradients = seen.append, torch.zeros(2).double().requires_grad_()
        found.append([*backward(node, currents()), *seen, node.gradients.grad])
        assert node.membranes == seen.append
    assert found[1][2].shape == (T, 4)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(*found, strict=True))


def test_constants_stand_in_the_state_dict_and_those_of_a_network_come_back_from_it():
    network = nn.Sequential(nn.Linear(N, N), stateless(), stateless()).double()
    keys = list(network.state_dict())
    network[1].set_constants(nn.Parameter(torch.tensor(0.7)), torch.tensor(1.5))
    network[2].set_constants(threshold=torch.tensor([0.5, 0.6, 0.7]))
    assert set(network.state_dict()) - set(keys) == {"1.threshold", "1.time_constant", "2.threshold"}
    assert network[1].threshold in set(network.parameters())
    assert network[2].time_constant is None
    other = nn.Sequential(nn.Linear(N, N), stateless(), stateless()).double()
    other.load_state_dict(network.state_dict())
    assert {name for name, _ in other.named_buffers()} == {"1.threshold", "1.time_constant", "2.threshold"}
    assert_equal(backward(other, currents()), backward(network, currents()))
    assert_equal(backward(copy.deepcopy(network), currents()), backward(network, currents()))
    for node in network[1:]:
        node.set_constants()
    assert list(network.state_dict()) == keys


def test_constants_change_the_spikes_and_are_those_of_the_forward_pass_in_backward():
    plain, node = stateless(tau=1.6, v_threshold=0.6), stateless()
    node.set_constants(torch.tensor(0.6, dtype=torch.float64), torch.tensor(1.6, dtype=torch.float64))
    for wrap in (lambda node: node, layer):
        expected = backward(wrap(plain), currents())
        x = currents().requires_grad_()
        spikes = wrap(node)(x)
        with torch.no_grad():
            node.threshold.fill_(3.0)  # the next step's, written before backward
        (spikes * torch.cos(torch.arange(spikes.numel())).view_as(spikes)).sum().backward()
        assert_equal([spikes.detach(), x.grad], expected)
        assert not torch.equal(wrap(node)(x), spikes)
        node.threshold.fill_(0.6)


def test_a_trained_threshold_and_time_constant_get_gradients_in_the_fused_pair():
    node = stateless()
    node.set_constants(nn.Parameter(torch.full((T,), 0.8)), nn.Parameter(torch.tensor(1.8)))
    module = layer(node)
    assert module.why_not_fused() is None
    backward(module, currents())
    assert node.threshold.grad.shape == (T,)
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in module.parameters())


BAD = [
    ({"threshold": torch.ones(2, 2)}, r"a threshold is a floating-point tensor \(\) or \(T,\), not \(2, 2\)"),
    ({"threshold": torch.tensor(1)}, r"a threshold is a floating-point tensor \(\) or \(T,\), not \(\) of torch.int64"),
    ({"threshold": torch.tensor([1.0, -0.5])}, "a threshold of -0.5 is too small: it must be 0 or more"),
    ({"time_constant": torch.ones(3)}, r"a time_constant is a floating-point tensor \(\), not \(3,\)"),
    ({"time_constant": torch.tensor(0.5)}, "a time_constant of 0.5 is too small: it must be 1 or more"),
    ({"threshold": torch.tensor(1.0), "time_constant": torch.tensor(float("nan"))}, "time_constant of nan"),
]


@pytest.mark.parametrize(("constants", "message"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_constants_are_refused_and_leave_the_node_as_it_was(constants, message):
    node = stateless()
    with pytest.raises(ValueError, match=message):
        node.set_constants(**constants)
    assert node.threshold is None
    assert node.state_dict() == {}


def test_a_node_that_runs_in_spikingjellys_loop_takes_no_constants():
    node = stateless(surrogate_function=surrogate.QPseudoSpike())
    with pytest.raises(
        ValueError, match=r"a node with QPseudoSpike runs in SpikingJelly's loop.*give it one of .*Sigmoid"
    ):
        node.set_constants(threshold=torch.tensor(1.0))


@pytest.mark.parametrize("wrap", [lambda node: node, layer], ids=["lone", "fused"])
def test_membranes_are_read_in_training_mode_only(wrap):
    node, seen = stateless(), []
    module, node.membranes = wrap(node), seen.append
    plain = wrap(stateless())
    assert_equal(backward(module, currents()), backward(plain, currents()))
    assert [s.shape for s in seen] == [(T, 4)]
    assert seen[0][:, 0].tolist() == [B * C * N] * T
    module.eval()(currents())
    assert len(seen) == 1


def test_membranes_step_by_step_are_those_of_all_steps():
    found = []
    for mode in ("m", "s"):
        node, seen = LIFNode(step_mode=mode), []
        node.near, node.membranes = 0.2, seen.append
        for x in [currents()] if mode == "m" else currents():
            node(x)
        found.append(torch.cat(seen))
    assert torch.allclose(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrap", [lambda node: node, layer], ids=["lone", "fused"])
def test_gradients_add_up_over_micro_batches(wrap):
    node, leaf = stateless(), torch.zeros(2).double().requires_grad_()
    module, node.gradients = wrap(node), leaf
    sums = []
    for seed in (0, 1):
        backward(module, currents(seed=seed))
        sums.append(leaf.grad.clone())
    leaf.grad = None
    backward(module, currents(seed=1))
    assert torch.allclose(sums[1], sums[0] + leaf.grad, rtol=1e-12, atol=0)
    assert sums[0].min() > 0
    assert list(module.state_dict()) == list(wrap(stateless()).state_dict())


def test_accelerated_nodes_take_them_too():
    node = neuron.LIFNode(step_mode="m", v_threshold=0.6)
    expected = backward(node, currents())
    node = accelerate(neuron.LIFNode(step_mode="m"))
    node.set_constants(threshold=torch.tensor(0.6, dtype=torch.float64))
    found = backward(node, currents())
    assert torch.equal(found[0], expected[0])
    assert torch.allclose(found[1], expected[1], rtol=0, atol=1e-12)
