"""GainMatched: slopes that keep the size of gradients, against a loop in plain torch; and the signal of the same."""

from contextlib import nullcontext

import pytest
import torch
from spikingjelly.activation_based import surrogate
from torch import nn

from sage_snn import SAGE, DeadZoneTanh, GainMatched, GradientGain, find_layers
from sage_snn.control import nodes_of
from sage_snn.kernels import switched_off
from sage_snn.layers import NormLIF, StatelessLIF

T = 3


class Pair(nn.Module):
    """Two layers of three channels, the second with an arctan of slope 2: (T, B, 3, 2, 2) -> the same."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        lif = {"tau": 2.0, "decay_input": False, "step_mode": "m", "detach_reset": True}
        self.first = NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), StatelessLIF(**lif))
        second = StatelessLIF(**lif, surrogate_function=surrogate.ATan(2.0))
        self.second = NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), second)
        self.double()

    def forward(self, x):
        return self.second(self.first(x))


WEIGHTS = torch.rand(T, 6, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) - 0.4


def batch(seed):
    return torch.randn(T, 6, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(model, policy, steps, start=0, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for seed in range(start, start + steps):
        optimizer.zero_grad()
        (model(batch(seed)) * WEIGHTS).sum().backward()
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


def straight_line(model, steps, rate, low, high):
    """The same training with all gradients kept; gives slopes and gains (2,)."""
    slopes, bases, gains = [4.0, 2.0], [4.0, 2.0], [0.0, 0.0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        signal, kept = batch(step), []
        for i, unit in enumerate((model.first, model.second)):
            currents = unit.norm(unit.synapse(signal.flatten(0, 1))).unflatten(0, (T, 6))
            currents.retain_grad()
            v, fired = torch.zeros_like(currents[0]), []
            for t in range(T):
                h = v / 2 + currents[t]
                x, a = (h - 1).detach(), slopes[i]
                sigmoid = torch.sigmoid(a * x)
                derivative = a * sigmoid * (1 - sigmoid) if i == 0 else a / 2 / (1 + (torch.pi / 2 * a * x) ** 2)
                fired.append(Fire.apply(h - 1, derivative))
                v = (1 - fired[-1].detach()) * h
            signal = torch.stack(fired)
            signal.retain_grad()
            kept.append((signal, currents))
        optimizer.zero_grad()
        (signal * WEIGHTS).sum().backward()
        optimizer.step()
        for i, (spikes, currents) in enumerate(kept):
            gains[i] = float(currents.grad.norm() / spikes.grad.norm())
            moved = slopes[i] * gains[i] ** -rate
            slopes[i] = min(max(moved, low * bases[i] / 4), high * bases[i] / 4)
    return slopes, gains


def test_a_training_agrees_with_a_straight_line_one():
    model = Pair()
    policy = GainMatched(model, rate=0.01, low=3.0, high=5.0)
    train(model, policy, 100)
    slopes, gains = straight_line(Pair(), 100, 0.01, 3.0, 5.0)
    assert policy.node_slopes.tolist() == pytest.approx(slopes, abs=1e-9)
    assert policy.gains.tolist() == pytest.approx(gains, abs=1e-9)
    assert slopes[0] != 4.0
    assert [float(node.slope()) for node in nodes_of(model)] == pytest.approx(slopes)


class Frozen(nn.Module):
    """Two nodes side by side on currents that do not change: (T, B) -> (T, B)."""

    def __init__(self):
        super().__init__()
        functions = (surrogate.Sigmoid(4.0), surrogate.ATan(2.0))
        self.nodes = nn.ModuleList(
            StatelessLIF(tau=2.0, step_mode="m", decay_input=False, surrogate_function=f) for f in functions
        )

    def forward(self, x):
        return self.nodes[0](x) + self.nodes[1](0.5 * x)


def test_gains_go_to_one_on_a_frozen_network():
    model, numbers = Frozen(), torch.Generator().manual_seed(0)
    x = torch.randn(2, 4096, dtype=torch.float64, generator=numbers).requires_grad_()
    weights = torch.randn(2, 4096, dtype=torch.float64, generator=numbers)
    policy, seen = GainMatched(model, rate=0.5, low=0.1, high=100.0), []
    for _ in range(40):
        (model(x) * weights).sum().backward()
        policy.step()
        seen.append(policy.gains)
    assert seen[-1].tolist() == pytest.approx([1.0, 1.0], abs=1e-3)
    assert (seen[0] < 0.8).all()
    assert (policy.slopes > 4.0).all()  # gradients shrank, so the surrogates had to grow


def test_slopes_end_at_their_bounds():
    model = Pair()
    with GainMatched(model, rate=50.0, low=3.0, high=5.0) as policy:
        train(model, policy, 2)
        assert set(policy.slopes.tolist()) <= {3.0, 5.0}


@pytest.mark.parametrize("kernels", [True, False])
def test_a_rate_of_zero_changes_no_bit(kernels):
    plain, held = Pair(), Pair()
    with nullcontext() if kernels else switched_off():
        train(plain, None, 20)
        train(held, GainMatched(held, rate=0.0), 20)
    assert all(torch.equal(value, held.state_dict()[name]) for name, value in plain.state_dict().items())


def test_a_node_without_gradients_keeps_its_slope_and_micro_batches_add_up():
    model = Pair()
    with GainMatched(model) as policy:
        model.first.requires_grad_(False)
        model(batch(0)).mul(0).sum().backward()
        policy.step()
        assert policy.node_slopes.tolist() == [4.0, 2.0]
    model.requires_grad_().first.norm.eval()
    model.second.norm.eval()
    gains = []
    for parts in ([6], [2, 4]):
        with GainMatched(model) as policy:
            each = zip(batch(0).split(parts, dim=1), WEIGHTS.split(parts, dim=1), strict=True)
            for x, weights in each:
                (model(x) * weights).sum().backward()
            policy.step()
            gains.append(policy.gains)
    assert torch.allclose(*gains, rtol=0, atol=1e-9)


def test_a_resumed_training_goes_on_to_the_same_bits():
    model, again = Pair(), Pair()
    policy, resumed = GainMatched(model), GainMatched(again)
    train(model, policy, 5)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(policy.state_dict())
    for m, p in ((model, policy), (again, resumed)):
        train(m, p, 5, start=5)
    assert torch.equal(resumed.node_slopes, policy.node_slopes)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_bad_input_is_refused_with_the_cure_and_removal_gives_the_network_back(jelly):
    model = Pair()
    for options in ({"rate": -1.0}, {"low": 5.0}, {"high": 3.0}):
        with pytest.raises(ValueError, match="rate must be >= 0 and 0 < low <= 4 <= high"):
            GainMatched(model, **options)
    with pytest.raises(ValueError, match=r"keeps its gradients to itself; .*accelerate\(model\)"):
        GainMatched(jelly())
    policy = GainMatched(model)
    with pytest.raises(RuntimeError, match=r"step\(\) before any backward pass"):
        policy.step()
    policy.remove()
    assert [(node.slope, node.gradients) for node in nodes_of(model)] == [(None, None)] * 2


def test_sage_follows_gradient_gains():
    model, apart = Pair(), Pair()
    layers, law = find_layers(model), DeadZoneTanh(dead_zone=0.0)
    with (
        SAGE(model, warmup_steps=9, groups=layers, source="gradient", law=law) as sage,
        GainMatched(apart, rate=0) as g,
    ):
        train(model, sage, 3)
        train(apart, g, 3)
        assert [float(values) for values in sage.readings] == pytest.approx(g.gains.tolist())
        assert "the gradients of LIFNode" in str(sage)
    with SAGE(model, warmup_steps=0, groups=layers, source="gradient", law=law) as sage:
        train(model, sage, 3)
        assert sage.slopes.tolist() != [4.0, 4.0]
    assert [node.gradients for node in nodes_of(model)] == [None, None]
    with pytest.raises(ValueError, match="too late for same_step=True"):
        SAGE(model, warmup_steps=0, groups=layers, source="gradient", same_step=True)
    assert GradientGain()(torch.tensor([4.0, 9.0])).tolist() == [1.5]
