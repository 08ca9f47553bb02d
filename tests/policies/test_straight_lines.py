"""Policies over a hundred steps of training, against straight lines in float64: slopes, weights, scores."""

import math
import statistics as plain

import pytest
import torch
from torch import nn

from sage_snn import SAGE, Group, Learnable, LIFNode, Scheduled
from sage_snn.control import nodes_of

STEPS, T = 100, 3
WAY = 60  # steps of a schedule
SHAPES = {
    "linear": lambda r: (1 - r) * 2 + r * 5,
    "exponential": lambda r: math.exp((1 - r) * math.log(2) + r * math.log(5)),
    "cosine": lambda r: 3.5 - 1.5 * math.cos(math.pi * r),
    "own": lambda r: 2 + 3 * r**3,
}


class Chain(nn.Module):
    """Layers of four neurons in a row: (T, B, 4) -> (T, B, 4)."""

    def __init__(self, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.time_steps = T
        self.maps = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.lifs = nn.ModuleList(LIFNode(tau=2.0, decay_input=False, step_mode="m") for _ in range(layers))
        self.double()

    def forward(self, x):
        for synapse, lif in zip(self.maps, self.lifs, strict=True):
            lif.reset()
            x = lif(synapse(x))
        return x


def batch(seed):
    return 2 * torch.randn(T, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(model, policy):
    """A step at a time."""
    optimizer = torch.optim.SGD([*model.parameters(), *policy.parameters()], lr=0.1)
    for seed in range(STEPS):
        optimizer.zero_grad()
        (model(batch(seed)).mean() - 0.6).square().backward()
        optimizer.step()
        policy.step()
        yield


def straight_line(model, slopes_at, trained=()):
    """The same training with spikes that autograd takes for sigmoids; `slopes_at(step)` gives a slope per time step."""
    weights = [p.detach().clone().requires_grad_() for layer in model.maps for p in (layer.weight, layer.bias)]
    for step in range(STEPS):
        signal, slopes = batch(step), slopes_at(step)
        for weight, bias in zip(weights[::2], weights[1::2], strict=True):
            currents, v, fired = signal @ weight.T + bias, torch.zeros(5, 4, dtype=torch.float64), []
            for current, slope in zip(currents, slopes, strict=True):
                h = v / 2 + current
                smooth = torch.sigmoid(slope * (h - 1))
                fired.append((h >= 1).double() + smooth - smooth.detach())
                v = (1 - fired[-1]) * h
            signal = torch.stack(fired)
        leaves = [*weights, *trained]
        gradients = torch.autograd.grad((signal.mean() - 0.6).square(), leaves)
        with torch.no_grad():
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf -= 0.1 * gradient
    return weights


def assert_close(model, weights):
    mine = [p for layer in model.maps for p in (layer.weight, layer.bias)]
    assert all(torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(mine, weights, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scheduled_training_agrees_with_a_straight_line_one(shape):
    model, way = Chain(), SHAPES[shape]
    policy = Scheduled(model, 2.0, 5.0, steps=WAY, shape=way if shape == "own" else shape)
    expected, found = [way(min(step / WAY, 1.0)) for step in range(STEPS + 1)], [float(policy.slopes[0])]
    for _ in train(model, policy):
        found.append(float(policy.slopes[0]))
        assert {float(node.slope()) for node in nodes_of(model)} == {found[-1]}
    assert found == pytest.approx(expected, abs=1e-12)
    assert_close(model, straight_line(Chain(), lambda step: [expected[step]] * T))
    assert found[WAY] == found[-1] == pytest.approx(5.0)


def test_slopes_learnt_per_time_step_agree_with_a_straight_line_training():
    model = Chain()
    policy = Learnable(model, per="time")
    [own] = policy.parameters()
    own.data = own.data.double()  # a slope of float32 is known to 1e-7 only
    logs = own.detach().clone().requires_grad_()
    for _ in train(model, policy):
        pass
    assert_close(model, straight_line(Chain(), lambda step: logs.exp(), [logs]))
    assert own.tolist() == pytest.approx(logs.tolist(), abs=1e-9)
    assert policy.slopes.tolist() == pytest.approx([plain.fmean(map(math.exp, logs.tolist()))] * 2, abs=1e-9)
    assert len({round(value, 4) for value in own.tolist()}) == T
    assert max(abs(value - math.log(4)) for value in own.tolist()) > 1e-3


def recomputed(readings, warmup):
    """Averages, scores and slopes after each step, of readings (steps, groups, nodes), in plain Python floats."""
    averages, slopes, told = [[] for _ in readings[0]], [4.0 for _ in readings[0]], []
    for step, groups in enumerate(readings, start=1):
        scores = []
        for past, nodes in zip(averages, groups, strict=True):
            spread = sum(nodes) / len(nodes)
            past.append(0.95 * past[-1] + 0.05 * spread if past else spread)
            mean, deviation = plain.fmean(past), plain.pstdev(past)
            scores.append((past[-1] - mean) / (deviation + 1e-8) if deviation > 0 else 0.0)
        scores = [score - plain.fmean(scores) for score in scores]
        if step >= warmup:
            slopes = [4.0 if abs(z) < 0.25 else 4.0 + 0.5 * math.tanh(z) for z in scores]
        told.append(([past[-1] for past in averages], scores, slopes))
    return told


@pytest.mark.parametrize("source", ["firing", "membrane", "gradient"])
def test_averages_scores_and_slopes_on_nodes_are_those_recomputed_from_the_readings(source):
    model = Chain(4)
    first, second, third, last = nodes_of(model)
    groups = [Group([first], "first"), Group([second, third], "between"), Group([last], "last")]
    sage, readings, found = SAGE(model, warmup_steps=10, groups=groups, source=source), [], []
    for _ in train(model, sage):
        readings.append([values.tolist() for values in sage.readings])
        found.append((sage.smoothed.tolist(), sage.zscores.tolist(), sage.slopes.tolist()))
        written = [float(node.slope()) for node in nodes_of(model)]
        assert written == [sage.slopes[i].item() for i in (0, 1, 1, 2)]
    assert [len(nodes) for nodes in readings[0]] == [1, 2, 1]
    for mine, expected in zip(found, recomputed(readings, 10), strict=True):
        for values, numbers in zip(mine, expected, strict=True):
            assert values == pytest.approx(numbers, abs=1e-9)
    assert all(slopes == [4.0] * 3 for _, _, slopes in found[:9])
    assert sum(slopes != [4.0] * 3 for _, _, slopes in found) > 50
