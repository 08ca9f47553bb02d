"""Aligned: what it learns from its trials, against the same in straight lines; what it keeps; what it costs."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sage_snn import Aligned, Group, LIFNode

STEPS, EVERY, RATE, REACH, LENGTH = 100, 4, 0.3, 0.5, 0.05


class Two(nn.Module):
    """Two spiking layers, T=2, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.nodes = nn.ModuleList(LIFNode(step_mode="m", carry_state=False) for _ in range(2))
        self.double()

    def forward(self, x):
        x = self.nodes[0](self.first(3 * x).expand(2, -1, -1))
        return self.head(self.nodes[1](3 * self.second(x)).mean(0))

    def groups(self):
        return [Group([node], name=f"layer {i}") for i, node in enumerate(self.nodes)]


def loss_of(model):
    return lambda batch: F.cross_entropy(model(batch[0]), batch[1])


def batches(count=STEPS, size=10):
    data = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(size, 6, dtype=torch.float64, generator=data)
        yield x, (x[:, :3].abs() + x[:, 3:]).argmax(1)


def attached(model, **options):
    settings = {"every": EVERY, "rate": RATE, "reach": REACH, "length": LENGTH, "groups": model.groups(), "seed": 7}
    return Aligned(model, loss_of(model), **(settings | options))


def train(model, policy, data, lr=0.05):
    """Plain descent with the policy; slopes after every step."""
    slopes, loss = [], loss_of(model)
    for batch in data:
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss(batch), list(model.parameters())), strict=True
        ):
            parameter.data.sub_(lr * gradient)
        policy.step(batch)
        slopes.append(policy.slopes)
    return torch.stack(slopes)


# The same in straight lines


def fire(currents, slope):
    """LIF over time with tau 2 and a hard reset; the gradient of a spike is that of a sigmoid."""
    v, spikes = torch.zeros_like(currents[0]), []
    for current in currents:
        v = v + (current - v) / 2
        smooth = torch.sigmoid(slope * (v - 1))
        spike = (v >= 1).double() + smooth - smooth.detach()
        v = (1 - spike) * v
        spikes.append(spike)
    return spikes


def straight_loss(weights, slopes, x, y):
    w1, b1, w2, b2, w3, b3 = weights
    first = fire([3 * x @ w1.T + b1] * 2, slopes[0])
    second = fire([3 * (s @ w2.T + b2) for s in first], slopes[1])
    logits = (second[0] + second[1]) / 2 @ w3.T + b3
    return -(logits - logits.logsumexp(1, keepdim=True))[range(len(y)), y].mean()


def straight_gradient(weights, slopes, x, y):
    weights = [w.detach().requires_grad_() for w in weights]
    straight_loss(weights, slopes, x, y).backward()
    return [w.grad for w in weights]


def straight(weights, data, lr=0.05, low=1.0, high=16.0):
    logs, square, trials, given = [math.log(4.0)] * 2, 0.0, 0, []
    generator = torch.Generator().manual_seed(7)
    for step, (x, y) in enumerate(data, 1):
        gradient = straight_gradient(weights, [math.exp(log) for log in logs], x, y)
        weights = [w - lr * g for w, g in zip(weights, gradient, strict=True)]
        if step % EVERY == 0:
            signs = [2 * int(bit) - 1 for bit in torch.randint(2, (2,), generator=generator)]
            outer, inner = [0, 1, 8, 9], [2, 3, 4, 5, 6, 7]
            losses = []
            for side in (+1, -1):
                slopes = [math.exp(log + side * REACH * sign) for log, sign in zip(logs, signs, strict=True)]
                gradient = straight_gradient(weights, slopes, x[outer], y[outer])
                size = math.sqrt(sum(float((w**2).sum()) for w in weights))
                steepness = math.sqrt(sum(float((g**2).sum()) for g in gradient))
                moved = [w - LENGTH * size / steepness * g for w, g in zip(weights, gradient, strict=True)]
                losses.append(float(straight_loss(moved, slopes, x[inner], y[inner])))
            trials += 1
            square = 0.9 * square + 0.1 * (losses[1] - losses[0]) ** 2
            pull = (losses[1] - losses[0]) / math.sqrt(square / (1 - 0.9**trials))
            for i in range(2):
                logs[i] = min(max(logs[i] + RATE * pull * signs[i], math.log(low)), math.log(high))
        given.append([math.exp(log) for log in logs])
    return torch.tensor(given, dtype=torch.float64), weights


@pytest.mark.parametrize("bounds", [{}, {"low": 3.0, "high": 5.0}], ids=["wide", "narrow"])
def test_slopes_and_weights_are_those_of_a_straight_line_implementation(bounds):
    model = Two()
    expected, weights = straight([p.detach().clone() for p in model.parameters()], batches(), **bounds)
    slopes = train(model, attached(model, **bounds), batches())
    assert torch.allclose(slopes, expected, rtol=0, atol=1e-9)
    for mine, theirs in zip(model.parameters(), weights, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)
    assert len(set(slopes[:, 0].tolist())) > (STEPS / EVERY / 2 if not bounds else 3)
    if bounds:
        assert slopes.min() >= 3 - 1e-12
        assert slopes.max() <= 5 + 1e-12
        assert slopes.max() > 5 - 1e-9 or slopes.min() < 3 + 1e-9  # a bound was met


def test_a_trial_worked_out_by_hand():
    """The first difference has the size of itself: the pull is 1, towards the better side."""
    model = Two()
    policy = attached(model, every=1)
    losses = iter([2.0, 1.5, 3.0, 1.0])  # of the sides; the gradient's own do not count
    policy._try = lambda candidates, tried, measured: torch.tensor([next(losses), next(losses)], dtype=torch.float64)
    signs = 2.0 * torch.randint(2, (2,), generator=torch.Generator().manual_seed(7)) - 1
    policy.step(next(batches()))
    assert policy.size == pytest.approx(0.5)
    assert policy.slopes.tolist() == pytest.approx([4 * math.exp(-RATE * sign) for sign in signs.tolist()])
    # squares 0.1 * 0.25, then 0.9 of that and 0.1 * 4, over 1 - 0.81: the root of 2.22368 is 1.49120
    policy.step(next(batches()))
    assert policy.size == pytest.approx(1.49120, abs=1e-5)


def test_a_loss_that_is_not_finite_teaches_nothing():
    model = Two()
    policy = attached(model, every=1)
    policy._try = lambda *_: torch.tensor([math.inf, 1.0], dtype=torch.float64)
    policy.step(next(batches()))
    assert policy.slopes.tolist() == [4.0, 4.0]
    assert policy.size == 0.0


class Branches(nn.Module):
    """One branch whose neurons are to fire, up to half a threshold away from it, and one whose never will.

    Steps along the weights of the second lower nothing. Its surrogate reaches far; the first one's share of a step is
    small where its own slope is so large that it reaches few neurons, or so small that it is flat.
    """

    def __init__(self):
        super().__init__()
        self.useful, self.idle = (nn.Parameter(torch.full((8,), value).double()) for value in (1.0, -1.0))
        self.nodes = nn.ModuleList(LIFNode(step_mode="m", carry_state=False) for _ in range(2))
        self.nodes[1].surrogate_function.alpha = 0.5

    def forward(self, x):
        return self.nodes[0](x * self.useful).mean() + self.nodes[1](x * self.idle).mean()


@pytest.mark.parametrize(("start", "sign"), [(40.0, -1), (0.2, 1)], ids=["too large", "too small"])
def test_it_leaves_a_slope_at_which_gradients_vanish(start, sign):
    model = Branches()
    settings = {"every": 1, "rate": 0.2, "length": 0.2, "low": 0.1, "high": 100.0}
    policy = Aligned(
        model, lambda x: (1 - model(x[None])) ** 2, slope=start, groups=[Group([model.nodes[0]])], **settings
    )
    for x in 1 + torch.rand(20, 16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        policy.step(x)
    assert sign * math.log(float(policy.slopes) / start) > 0.7


# State


def test_a_resumed_policy_goes_on_to_the_same_bits():
    whole, parts = Two(), Two()
    data = list(batches(40))
    expected = train(whole, attached(whole), data)
    first = attached(parts)
    train(parts, first, data[:18])
    state = first.state_dict()
    first.remove()
    second = attached(parts)
    second.load_state_dict(state)
    slopes = train(parts, second, data[18:])
    assert torch.equal(slopes, expected[18:])
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    assert set(state) >= {"offsets", "square", "trials", "generator", "steps"}
    with pytest.raises(ValueError, match=r"another Aligned:\n  reach: 0.5 there, 0.1 here"):
        attached(Two(), reach=0.1).load_state_dict(state)


def test_seeds_draw_other_directions():
    one, other = (train(model, attached(model, seed=seed), batches(20)) for seed in (1, 2) for model in [Two()])
    assert not torch.equal(one, other)


# Cost


class Counted(Two):
    """Notes the images that pass forward, once, and backward, twice: units of a forward pass on one image."""

    def __init__(self):
        super().__init__()
        self.units = []  # a list, since a number would be put back after a trial

    def forward(self, x):
        logits = super().forward(x)
        self.units.append(len(x))
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self.units.append(2 * len(gradient)))
        return logits


def test_the_cost_is_what_is_said_and_at_most_15_percent_by_default():
    model = Counted()
    policy = Aligned(model, loss_of(model), groups=model.groups())
    loss_of(model)(next(batches(1, 32))).backward()
    a_step = sum(model.units)
    model.units.clear()
    for batch in batches(160, 32):
        policy.step(batch)
    cost = sum(model.units) / (160 * a_step)
    assert cost == pytest.approx(4 / 3 / 16)
    assert cost < 0.15
    assert "a trial every 16 steps costs about 1.33 steps, 8% of the time; 10 were made" in str(policy)
