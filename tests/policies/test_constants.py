"""LearnableConstants: thresholds and time constants that are the network's own, trained with its weights."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sage_snn import Fixed, Group, LearnableConstants, find_layers
from sage_snn.control import nodes_of
from sage_snn.layers import NormLIF, StatelessLIF

T = 3


class Pair(nn.Module):
    """Two layers of three channels, soft reset: (T, B, 3, 2, 2) -> the same."""

    def __init__(self, thresholds=(1.0, 1.0)):
        super().__init__()
        torch.manual_seed(0)
        lif = {"tau": 2.0, "step_mode": "m", "v_reset": None, "decay_input": False}
        self.first, self.second = (
            NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), StatelessLIF(**lif, v_threshold=threshold))
            for threshold in thresholds
        )
        self.double()

    def forward(self, x):
        return self.second(self.first(x))


def batch(seed):
    return torch.randn(T, 4, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train(model, policy, steps, *, start=0, lr=0.5, frozen=False):
    own = {id(p) for node in nodes_of(model) for p in node.parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if not (frozen and id(p) in own)], lr=lr)
    for seed in range(start, start + steps):
        model.zero_grad()
        (model(batch(seed)).mean() - 0.1).square().backward()
        optimizer.step()
        if policy is not None:
            policy.step()


class Smooth(torch.autograd.Function):
    """A step whose gradient, with respect to all that made x, is that of a sigmoid of slope 4."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        s = torch.sigmoid(4 * ctx.saved_tensors[0])
        return grad * 4 * s * (1 - s)


def straight_line(model, target, steps, *, shared=False):
    """The same training by autograd; gives the constants of both layers."""
    start = 1.0 if target == "threshold" else 2.0
    values = [torch.tensor(start, dtype=torch.float64, requires_grad=True) for _ in range(1 if shared else 2)]
    optimizer = torch.optim.SGD([*model.parameters(), *values], lr=0.5)
    for step in range(steps):
        signal = batch(step)
        for i, unit in enumerate((model.first, model.second)):
            value = values[0 if shared else i]
            threshold, tau = (value, 2.0) if target == "threshold" else (1.0, value)
            currents = unit.norm(unit.synapse(signal.flatten(0, 1))).unflatten(0, (T, 4))
            v, fired = torch.zeros_like(currents[0]), []
            for current in currents:
                h = v - v / tau + current
                fired.append(Smooth.apply(h - threshold))
                v = h - fired[-1] * threshold
            signal = torch.stack(fired)
        optimizer.zero_grad()
        (signal.mean() - 0.1).square().backward()
        optimizer.step()
        with torch.no_grad():
            for value in values:
                value.clamp_(min=0.1 if target == "threshold" else 1.0)
    return [value.item() for value in values]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["threshold", "time_constant"])
@pytest.mark.parametrize("per", ["layer", "group"])
def test_a_training_agrees_with_a_straight_line_one(target, per):
    model = Pair()
    groups = [Group(nodes_of(model), name="both")] if per == "group" else None
    policy = LearnableConstants(model, target, per=per, groups=groups)
    train(model, policy, 100)
    expected = straight_line(Pair(), target, 100, shared=per == "group")
    assert [float(value) for value in policy.values] == pytest.approx(expected, abs=1e-9)
    assert all(abs(value - (1.0 if target == "threshold" else 2.0)) > 1e-4 for value in expected)


def test_constants_are_the_networks_and_stay_with_it():
    model = Pair()
    before = set(model.state_dict())
    policy = LearnableConstants(model)
    assert list(policy.parameters()) == []
    assert {name for name, _ in model.named_parameters()} >= {"first.lif.threshold", "second.lif.threshold"}
    assert set(model.state_dict()) - before == {"first.lif.threshold", "second.lif.threshold"}
    assert "changes the forward pass: the thresholds are parameters of the network" in str(policy)
    assert "so the deployed network differs" in str(policy)
    assert policy.slopes.tolist() == [4.0, 4.0]
    train(model, policy, 3)
    policy.remove()
    fresh = Pair()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(batch(9)), model.eval()(batch(9)))
    with Fixed(model, slope=3.0):  # another policy may take over the slopes
        assert isinstance(model.first.lif.threshold, nn.Parameter)
    again = LearnableConstants(fresh)
    assert torch.equal(torch.stack(again.values), torch.stack([p.detach() for p in trained(model)]))


def trained(model):
    return [node.threshold for node in nodes_of(model)]


def test_constants_that_no_optimizer_trains_change_no_bit():
    plain, held = Pair(), Pair()
    train(plain, None, 10)
    train(held, LearnableConstants(held), 10, frozen=True)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, held.state_dict()[name]), name


def test_a_resumed_training_goes_on_to_the_same_bits():
    model, again = Pair(), Pair()
    policy, resumed = LearnableConstants(model, "time_constant"), LearnableConstants(again, "time_constant")
    train(model, policy, 5)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(policy.state_dict())
    for m, p in ((model, policy), (again, resumed)):
        train(m, p, 5, start=5)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="this state is of a time_constant per layer, here it is a threshold per"):
        LearnableConstants(Pair()).load_state_dict(policy.state_dict())


def test_constants_are_kept_in_their_bounds():
    for target, lowest in (("threshold", 0.1), ("time_constant", 1.0)):
        model = Pair()
        with LearnableConstants(model, target) as policy:
            for value in trained(model) if target == "threshold" else [n.time_constant for n in nodes_of(model)]:
                nn.init.constant_(value, -3.0)
            policy.step()
            assert [float(value) for value in policy.values] == [lowest, lowest]


def test_a_shared_constant_survives_a_copy_and_a_file(tmp_path):
    model = Pair()
    LearnableConstants(model, per="group", groups=[Group(nodes_of(model), name="both")]).remove()
    assert model.first.lif.threshold is model.second.lif.threshold
    twin = copy.deepcopy(model)
    assert twin.first.lif.threshold is twin.second.lif.threshold is not model.first.lif.threshold
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    fresh = Pair()
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert float(fresh.second.lif.threshold) == 1.0


def test_bad_input_is_refused_with_the_cure_and_leaves_the_network_alone(jelly, ours):
    model, mixed = Pair(), Pair((1.0, 0.5))
    cases = [
        (model, {"target": "slope"}, r"target must be 'threshold' or 'time_constant'.*slopes: Learnable\(model\)"),
        (model, {"per": "time"}, "per must be 'layer' or 'group'"),
        (jelly(), {}, r"keeps its threshold to itself; .*accelerate\(model\)"),
        (
            mixed,
            {"per": "group", "groups": [Group(nodes_of(mixed), name="both")]},
            "start with 1.0 and 0.5.*per='layer'",
        ),
    ]
    for network, options, told in cases:
        names = set(network.state_dict())
        with pytest.raises(ValueError, match=told):
            LearnableConstants(network, **options)
        assert set(network.state_dict()) == names
    assert len(LearnableConstants(ours(), "time_constant", per="group").values) == 2
    assert len(LearnableConstants(mixed, groups=find_layers(mixed)).values) == 2


def test_a_model_in_ddp_is_refused_with_the_cure(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="attach LearnableConstants before wrapping in it"):
            LearnableConstants(DistributedDataParallel(Pair()))
    finally:
        torch.distributed.destroy_process_group()
