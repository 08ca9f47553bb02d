"""ASGL: smooth values among the spikes, against a loop in plain torch that lets autograd do the work."""

import pytest
import torch
from spikingjelly.activation_based import neuron, surrogate
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import ASGL, Learnable, LIFNode
from sage_snn.control import copied, nodes_of
from sage_snn.surrogate import PRIMITIVES, mixed_spike, peak, slope_of_width, spike

T = 3


class Pair(nn.Module):
    """Two layers of four neurons: (T, B, 4) -> (T, B, 4)."""

    def __init__(self, make=LIFNode, **options):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.lifs = nn.ModuleList(make(tau=2.0, decay_input=False, step_mode="m", **options) for _ in range(2))
        self.double()

    def forward(self, x):
        for lif in self.lifs:
            lif.reset()
        return self.lifs[1](self.second(self.lifs[0](self.first(x))))


def batch(seed):
    return 2 * torch.randn(T, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(model, policy, steps, *, start=0, learn=True):
    parameters = [*model.parameters(), *(policy.parameters() if policy is not None and learn else ())]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for seed in range(start, start + steps):
        optimizer.zero_grad()
        (model(batch(seed)).mean() - 0.6).square().backward()
        optimizer.step()
        if policy is not None:
            policy.step()


def straight_line(model, p, steps, seed):
    """The same training, a line a thing: smooth steps by torch's own functions, gradients by autograd."""
    maps = [(m.weight.detach().clone(), m.bias.detach().clone()) for m in (model.first, model.second)]
    logs = [torch.full((), 4.0).log() for _ in range(2)]  # float32, as the policy's
    leaves = [tensor.requires_grad_() for pair in maps for tensor in pair] + [log.requires_grad_() for log in logs]
    masks = torch.Generator().manual_seed(seed)
    for step in range(steps):
        signal = batch(step)
        for (weight, bias), log in zip(maps, logs, strict=True):
            currents, v, fired = signal @ weight.T + bias, torch.zeros(5, 4, dtype=torch.float64), []
            for current in currents:
                h = v / 2 + current
                smooth = torch.sigmoid(log.exp() * (h - 1))
                hard = torch.where(torch.rand(h.shape, generator=masks) < p, smooth, (h >= 1).double())
                out = smooth + (hard - smooth).detach()
                fired.append(out)
                v = (1 - out) * h
            signal = torch.stack(fired)
        gradients = torch.autograd.grad((signal.mean() - 0.6).square(), leaves)
        with torch.no_grad():
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf -= 0.1 * gradient
    return maps, logs


def test_a_training_agrees_with_a_straight_line_one():
    model, twin = Pair(), Pair()
    policy = ASGL(model, p=0.4, seed=7)
    train(model, policy, 100)
    maps, logs = straight_line(twin, 0.4, 100, seed=7)
    for mine, theirs in zip(
        (model.first.weight, model.first.bias, model.second.weight), (*maps[0], maps[1][0]), strict=True
    ):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-6)  # slopes are float32
    slopes = torch.stack([log.detach().exp() for log in logs])
    assert torch.allclose(torch.stack([p.detach().exp() for p in policy.parameters()]), slopes, rtol=0, atol=1e-5)
    assert not torch.allclose(slopes, torch.full((2,), 4.0), atol=0.01)


@pytest.mark.parametrize("shape", PRIMITIVES)
def test_mixed_spikes_have_the_gradients_of_the_smooth_step(shape):
    x = torch.linspace(-1.3, 1.2, 41, dtype=torch.float64, requires_grad=True)
    slope = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(41) % 3 == 0
    smooth = PRIMITIVES[shape](x, slope)
    assert PRIMITIVES[shape](torch.tensor([-1e6, 0.0, 1e6]), torch.ones(())).tolist() == pytest.approx(
        [0, 0.5, 1], abs=1e-5
    )
    mixed = mixed_spike(x, slope, shape, mask)
    assert torch.equal(mixed, torch.where(mask, smooth, (x >= 0).double()))
    weights = torch.rand(41, dtype=torch.float64)
    expected = torch.autograd.grad((weights * smooth).sum(), (x, slope))
    for mine, theirs in zip(torch.autograd.grad((weights * mixed).sum(), (x, slope)), expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)


def test_heights_at_the_threshold():
    heights = {"Sigmoid": 0.25, "ATan": 0.5, "PiecewiseQuadratic": 1, "PiecewiseExp": 0.5, "SoftSign": 0.5, "Rect": 1}
    assert {shape: peak(shape) for shape in heights} == pytest.approx(heights)
    x = torch.zeros((), requires_grad=True)
    spike(x, slope_of_width(torch.tensor(0.5), "ATan"), "ATan").backward()
    assert float(x.grad) == pytest.approx(2.0)  # a rectangle of width 0.5


def test_p_of_zero_is_learnable_per_layer_to_the_bit():
    mixed, learnt = Pair(), Pair()
    policy = ASGL(mixed, p=0.0)
    assert policy.remarks(20) == []
    assert "forward pass" not in str(policy)
    train(mixed, policy, 20)
    train(learnt, Learnable(learnt, per="layer"), 20)
    assert all(torch.equal(value, learnt.state_dict()[name]) for name, value in mixed.state_dict().items())


def test_p_of_zero_without_training_its_slopes_is_plain_training_to_the_bit():
    mixed, plain = Pair(), Pair()
    train(mixed, ASGL(mixed, p=0.0), 20, learn=False)
    train(plain, None, 20)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in mixed.state_dict().items())


@pytest.mark.parametrize("make", [LIFNode, neuron.LIFNode], ids=["ours", "jelly"])
def test_values_are_smooth_in_training_and_spikes_in_eval_mode(make):
    model, plain = Pair(make), Pair(make)
    with ASGL(model, p=0.5) as policy:
        values = model(batch(0)).detach()
        assert ((values != 0) & (values != 1)).double().mean() == pytest.approx(0.5, abs=0.15)
        model.eval()
        assert torch.equal(model(batch(0)), plain.eval()(batch(0)))
        assert "a plain loop over time, for which there is no kernel" in str(policy)
        [remark] = policy.remarks(10)
        assert remark.startswith("changes the forward pass in training only: a share of 0.5 of the values is smooth")
        assert remark in str(policy)
    assert torch.equal(model.train()(batch(0)), plain.train()(batch(0)))
    assert all(type(node.surrogate_function) is surrogate.Sigmoid for node in nodes_of(model))


def test_a_resumed_training_draws_the_masks_that_come_next():
    model, again = Pair(), Pair()
    policy, resumed = ASGL(model, p=0.3), ASGL(again, p=0.3)
    train(model, policy, 5)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(policy.state_dict())
    for m, p in ((model, policy), (again, resumed)):
        train(m, p, 5, start=5)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert torch.equal(policy.slopes, resumed.slopes)


def test_a_copied_network_is_free_and_the_original_keeps_its_masks():
    model = Pair()
    policy = ASGL(model, p=0.3)
    model(batch(0))
    (twin,) = copied(model)  # membranes hang on a graph
    before = policy.state_dict()["generator"]
    twin(batch(0))
    assert torch.equal(policy.state_dict()["generator"], before)
    ASGL(twin, p=0.3).remove()
    assert all(type(node.surrogate_function) is surrogate.Sigmoid for node in nodes_of(twin))


def test_bad_input_is_refused_with_the_cure_and_leaves_the_network_alone():
    model = Pair()
    with pytest.raises(ValueError, match="p is a probability"):
        ASGL(model, p=1.5)
    odd = Pair(surrogate_function=surrogate.SuperSpike())
    with pytest.raises(ValueError, match="SuperSpike is not the derivative of a step; use one of Sigmoid, ATan"):
        ASGL(odd)
    ASGL(odd, p=0.0).remove()
    with ASGL(model, p=0.5), pytest.raises(RuntimeError, match=r"would draw other masks.*train without checkpointing"):
        checkpoint(model, batch(0).requires_grad_(), use_reentrant=False).sum().backward()
    with pytest.raises(ValueError, match=r"ASGL\(p=0.5\), here it is p=0.2"):
        ASGL(Pair()).load_state_dict(ASGL(model, p=0.5).state_dict())
