"""DS_ATGO: thresholds and widths from the membranes, against a loop in plain torch that keeps them all."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from spikingjelly.activation_based import surrogate
from torch import nn

from sage_snn import DS_ATGO, Group, find_layers
from sage_snn.control import nodes_of
from sage_snn.kernels import switched_off
from sage_snn.layers import NormLIF, StatelessLIF

T = 3


class Pair(nn.Module):
    """Two layers of three channels, the second a rectangle with threshold 0.5: (T, B, 3, 2, 2) -> the same."""

    def __init__(self, steps=T):
        super().__init__()
        torch.manual_seed(0)
        lif = {"tau": 2.0, "decay_input": False, "step_mode": "m", "detach_reset": True}
        self.time_steps = steps
        self.first = NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), StatelessLIF(**lif))
        second = StatelessLIF(**lif, v_threshold=0.5, surrogate_function=surrogate.Rect(1.0))
        self.second = NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), second)
        self.double()

    def forward(self, x):
        return self.second(self.first(x))


def batch(seed, steps=T):
    return torch.randn(steps, 4, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(model, policy, steps, start=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(start, start + steps):
        optimizer.zero_grad()
        (model(batch(seed, model.time_steps)).mean() - 0.4).square().backward()
        optimizer.step()
        if policy is not None:
            policy.step()


class Fire(torch.autograd.Function):
    """A step with a surrogate that is told."""

    @staticmethod
    def forward(ctx, x, derivative):
        ctx.save_for_backward(derivative)
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def straight_line(model, steps, momentum, width):
    """The same training with all membranes kept; gives thresholds and slopes (2, T), and the weights."""
    firsts = [1.0, 0.5]
    thresholds = [[first] * T for first in firsts]
    slopes = [[4 / width] * T, [1 / width] * T]
    layers = [(unit.synapse, unit.norm) for unit in (model.first, model.second)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        signal, charged = batch(step), []
        for i, (synapse, norm) in enumerate(layers):
            currents = norm(synapse(signal.flatten(0, 1))).unflatten(0, (T, 4))
            v, fired, kept = torch.zeros_like(currents[0]), [], []
            for t in range(T):
                h = v / 2 + currents[t]
                x, a = (h - thresholds[i][t]).detach(), slopes[i][t]
                sigmoid = torch.sigmoid(a * x)
                derivative = a * sigmoid * (1 - sigmoid) if i == 0 else a * (x.abs() < 0.5 / a).double()
                spike = Fire.apply(h - thresholds[i][t], derivative)
                v = (1 - spike.detach()) * h
                kept.append(h.detach())
                fired.append(spike)
            signal, charged = torch.stack(fired), [*charged, kept]
        optimizer.zero_grad()
        (signal.mean() - 0.4).square().backward()
        optimizer.step()
        for i, kept in enumerate(charged):
            for t, h in enumerate(kept):
                seen = float(h.mean() + h.std(correction=0))
                thresholds[i][t] = max(0.05, (1 - momentum) * thresholds[i][t] + momentum * seen)
                rectangle = width * (1 + math.tanh(thresholds[i][t] - firsts[i]))
                slopes[i][t] = 1 / (rectangle * (0.25 if i == 0 else 1))
    return torch.tensor(thresholds, dtype=torch.float64), torch.tensor(slopes, dtype=torch.float64), model.state_dict()


def test_a_training_agrees_with_a_straight_line_one():
    model = Pair()
    policy = DS_ATGO(model, momentum=0.2, width=0.8)
    train(model, policy, 100)
    thresholds, slopes, weights = straight_line(Pair(), 100, 0.2, 0.8)
    assert torch.allclose(policy.thresholds, thresholds, rtol=0, atol=1e-9)
    assert torch.allclose(policy.node_slopes, slopes, rtol=0, atol=1e-9)
    assert len(set(thresholds.flatten().tolist())) == 2 * T
    for name, value in weights.items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-9), name
    assert torch.allclose(model.first.lif.slope(), slopes[0])


def test_micro_batches_count_as_one_batch():
    whole, halves = Pair(), Pair()
    for model in (whole, halves):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    policies = [DS_ATGO(model) for model in (whole, halves)]
    whole(batch(0)).sum().backward()
    for part in batch(0).split([3, 1], dim=1):
        halves(part).sum().backward()
    for policy in policies:
        policy.step()
    assert torch.allclose(policies[0].thresholds, policies[1].thresholds, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_momentum_of_zero_changes_no_bit(kernels):
    plain, held = Pair(), Pair()
    policy = DS_ATGO(held, momentum=0.0)
    with nullcontext() if kernels else switched_off():
        train(plain, None, 20)
        train(held, policy, 20)
    assert policy.slopes.tolist() == [4.0, 4.0]
    for name, value in plain.state_dict().items():
        assert torch.equal(value, held.state_dict()[name]), name


def test_thresholds_belong_to_the_network_and_slopes_do_not():
    model = Pair()
    policy = DS_ATGO(model)
    assert "changes the forward pass: the thresholds are the network's own" in str(policy)
    assert "so the deployed network differs" in str(policy)
    assert "2 of 2 pairs of BatchNorm and neuron fused" in str(policy)
    train(model, policy, 3)
    policy.remove()
    assert [node.slope for node in nodes_of(model)] == [None, None]
    assert [node.membranes for node in nodes_of(model)] == [None, None]
    assert torch.equal(model.state_dict()["first.lif.threshold"], policy.thresholds[0])
    fresh = Pair()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(batch(9)), model.eval()(batch(9)))
    assert not torch.equal(fresh(batch(9)), untouched(model)(batch(9)))
    again = DS_ATGO(fresh)  # goes on from the thresholds, measured by the first ones
    assert torch.equal(again.thresholds, policy.thresholds)
    assert torch.allclose(again.node_slopes, policy.node_slopes)


def untouched(model):
    """The same weights with the thresholds that nodes were built with."""
    bare = copy.deepcopy(model)
    for node in nodes_of(bare):
        node.set_constants()
    return bare


def test_a_resumed_training_goes_on_to_the_same_bits():
    model, again = Pair(), Pair()
    policy, resumed = DS_ATGO(model), DS_ATGO(again)
    train(model, policy, 5)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(policy.state_dict())
    for m, p in ((model, policy), (again, resumed)):
        train(m, p, 5, start=5)
    assert torch.equal(resumed.node_slopes, policy.node_slopes)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match=r"momentum: 0.1 there, 0.5 here"):
        DS_ATGO(Pair(), momentum=0.5).load_state_dict(policy.state_dict())


def test_passes_in_eval_mode_are_not_read():
    model = Pair()
    policy = DS_ATGO(model)
    model.eval()
    model(batch(0))
    with pytest.raises(RuntimeError, match="step\\(\\) before any forward pass"):
        policy.step()


def test_thresholds_stay_positive_where_membranes_are_far_below_zero():
    model = Pair()
    nn.init.constant_(model.first.norm.bias, -20.0)
    with DS_ATGO(model, momentum=1.0) as policy:
        model(batch(0)).sum().backward()
        policy.step()
        assert policy.thresholds[0].tolist() == [0.05] * T
        assert policy.node_slopes.isfinite().all()


def test_bad_input_is_refused_with_the_cure_and_leaves_the_network_alone(jelly):
    model = Pair()
    for options, told in (({"momentum": 2.0}, "momentum is from 0 to 1"), ({"width": 0.0}, "width positive")):
        with pytest.raises(ValueError, match=told):
            DS_ATGO(model, **options)
    with pytest.raises(ValueError, match=r"keeps its threshold to itself; .*accelerate\(model\)"):
        DS_ATGO(jelly())
    assert not [name for name in model.state_dict() if "threshold" in name]
    policy = DS_ATGO(model, groups=[Group([model.first.lif], name="first")])
    assert model.second.lif.threshold is None
    policy.remove()
    with pytest.raises(ValueError, match=r"the network has 3 thresholds per node.*trains with 2 steps"):
        DS_ATGO(model, groups=find_layers(model), time_steps=2)
