"""DGS: when it searches, how candidates are weighed, where the slope goes; against the same in straight lines."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sage_snn import DGS, Group, LIFNode
from sage_snn.policies.dgs import weights_after_a_step

STEPS, EVERY, BATCHES, DELTA, LENGTH = 100, 10, 4, 0.9, 0.1


class One(nn.Module):
    """Two groups of spiking neurons side by side, T=2, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(6, 24), nn.Linear(24, 3)
        self.nodes = nn.ModuleList(LIFNode(step_mode="m", carry_state=False) for _ in range(2))
        self.double()

    def forward(self, x):
        one, two = self.inner(3 * x).expand(2, -1, -1).chunk(2, -1)
        return self.head(torch.cat([self.nodes[0](one), self.nodes[1](two)], -1).mean(0))

    def groups(self):
        return [Group([node]) for node in self.nodes]


def loss_of(model):
    return lambda batch: F.cross_entropy(model(batch[0]), batch[1])


def batches(count=STEPS):
    data = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(10, 6, dtype=torch.float64, generator=data)
        yield x, (x[:, :3].abs() + x[:, 3:]).argmax(1)


def attached(model, **options):
    settings = {"every": EVERY, "batches": BATCHES, "delta": DELTA, "length": LENGTH, "groups": model.groups()}
    return DGS(model, loss_of(model), **(settings | options))


def train(model, policy, data, lr=0.1):
    """Plain descent with the policy; slopes and sums of weights after every step."""
    slopes, votes, loss = [], [], loss_of(model)
    for batch in data:
        gradients = torch.autograd.grad(loss(batch), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.data.sub_(lr * gradient)
        policy.step(batch)
        slopes.append(policy.slopes)
        votes.append(policy.votes)
    return torch.stack(slopes), torch.stack(votes)


# The same in straight lines


def straight_loss(weights, slope, x, y):
    w1, b1, w2, b2 = weights
    current, v, rate = 3 * x @ w1.T + b1, 0.0, 0.0
    for _ in range(2):
        v = v + (current - v) / 2
        smooth = torch.sigmoid(slope * (v - 1))
        spike = (v >= 1).double() + smooth - smooth.detach()
        v, rate = (1 - spike) * v, rate + spike / 2
    logits = rate @ w2.T + b2
    return -(logits - logits.logsumexp(1, keepdim=True))[range(len(y)), y].mean()


def straight_gradient(weights, slope, x, y):
    weights = [w.detach().requires_grad_() for w in weights]
    straight_loss(weights, slope, x, y).backward()
    return [w.grad for w in weights]


def straight(weights, data, pairs, floor, lr=0.1):
    slope, given, sums = 4.0, [], []
    total = [0.0] * (1 + 2 * pairs)
    for step, (x, y) in enumerate(data):
        gradient = straight_gradient(weights, slope, x, y)
        weights = [w - lr * g for w, g in zip(weights, gradient, strict=True)]
        if step >= EVERY and step % EVERY < BATCHES:
            offsets = [0.0, -DELTA, DELTA, -2 * DELTA, 2 * DELTA][: len(total)]
            candidates = [slope] + [max(slope + offset, floor) for offset in offsets[1:]]
            losses = []
            for candidate in candidates:
                gradient = straight_gradient(weights, candidate, x[[0, 1, 8, 9]], y[[0, 1, 8, 9]])
                size = math.sqrt(sum(float((w**2).sum()) for w in weights))
                steepness = math.sqrt(sum(float((g**2).sum()) for g in gradient))
                moved = [w - LENGTH * size / steepness * g for w, g in zip(weights, gradient, strict=True)]
                losses.append(float(straight_loss(moved, candidate, x[2:8], y[2:8])))
            logits = torch.zeros(len(losses), dtype=torch.float64, requires_grad=True)
            mixed = (torch.softmax(logits, 0) * torch.tensor(losses, dtype=torch.float64)).sum()
            (slope_of_mixed,) = torch.autograd.grad(mixed, logits)
            weighed = torch.softmax(logits.detach() - slope_of_mixed, 0).tolist()
            total = [a + b for a, b in zip(total, weighed, strict=True)]
            if step % EVERY == BATCHES - 1:
                slope = candidates[total.index(max(total))]
                total = [0.0] * len(total)
        given.append([slope] * 2)
        sums.append(list(total))
    return torch.tensor(given, dtype=torch.float64), torch.tensor(sums, dtype=torch.float64), weights


@pytest.mark.parametrize(("pairs", "floor"), [(1, 0.2), (2, 3.5)])
def test_slopes_sums_and_weights_are_those_of_a_straight_line_implementation(pairs, floor):
    model = One()
    expected, sums, weights = straight([p.detach().clone() for p in model.parameters()], batches(), pairs, floor)
    slopes, votes = train(model, attached(model, pairs=pairs, floor=floor), batches())
    assert torch.allclose(slopes, expected, rtol=0, atol=1e-9)
    assert torch.allclose(votes, sums, rtol=0, atol=1e-9)
    for mine, theirs in zip(model.parameters(), weights, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)
    assert len(set(slopes[:, 0].tolist())) > 2
    assert slopes.min() >= floor


def test_weights_worked_out_by_hand():
    # logits 0 - 1/3 * (L - 2) = 1/3, 0, -1/3; exp: 1.395612, 1, 0.716531; sum 3.112143
    weights = weights_after_a_step(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert weights.tolist() == pytest.approx([0.448441, 0.321322, 0.230237], abs=1e-6)


def scripted(losses, **options):
    """A search over one batch per period whose trials find the given losses."""
    model = One()
    policy = attached(model, every=1, batches=1, **options)
    policy._try = lambda candidates, *_: torch.tensor(losses, dtype=torch.float64)
    policy.step(next(batches()))
    assert policy.slopes.tolist() == [4.0, 4.0]  # the first period has no search
    policy.step(next(batches()))
    return policy.slopes.tolist()


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([1.0, 1.0, 0.5], 4.9), ([1.0, 0.9, 1.1], 3.1), ([0.5, 1.0, 1.0], 4.0), ([1.0, 1.0, 1.0], 4.0)],
)
def test_the_slope_moves_to_the_candidate_with_the_lowest_loss_and_stays_where_all_are_equal(losses, expected):
    assert scripted(losses) == pytest.approx([expected] * 2)


def test_a_loss_that_is_not_finite_teaches_nothing():
    assert scripted([1.0, math.nan, 0.5]) == [4.0, 4.0]


def test_a_slope_does_not_fall_below_its_floor():
    assert scripted([1.0, 0.5, 1.0], floor=3.9) == [3.9, 3.9]


def test_it_searches_at_the_start_of_every_period_but_the_first():
    model, made = One(), []
    policy = attached(model, every=5, batches=2)
    policy._try = lambda candidates, *_: (made.append(policy._done), torch.zeros(3, dtype=torch.float64))[1]
    for batch in batches(17):
        policy.step(batch)
    assert made == [5, 6, 10, 11, 15, 16]


def test_a_search_stopped_in_the_middle_goes_on_to_the_same_bits():
    whole, parts = One(), One()
    data = list(batches(40))
    expected = train(whole, attached(whole), data)
    first = attached(parts)
    train(parts, first, data[:13])
    state = first.state_dict()
    assert state["votes"].sum() == pytest.approx(3)  # three batches of the search were tried
    first.remove()
    second = attached(parts)
    second.load_state_dict(state)
    found = train(parts, second, data[13:])
    assert all(torch.equal(mine, theirs[13:]) for mine, theirs in zip(found, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"another DGS:\n  pairs: 1 there, 2 here"):
        attached(One(), pairs=2).load_state_dict(state)


def test_it_says_what_a_search_costs():
    model = One()
    with DGS(model, loss_of(model), every=2000, batches=200, groups=model.groups()) as policy:
        told = (
            "candidates 4, 3.8, 4.2; a search every 2000 steps costs about 2.00 steps for each of its 200 batches, 20%"
        )
        assert told in str(policy)
    with DGS(model, loss_of(model), every=2000, pairs=0, groups=model.groups()) as policy:
        assert "no neighbours to try: the slope stays" in str(policy)
