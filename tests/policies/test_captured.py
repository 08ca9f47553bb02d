"""Graphs that are captured once and replayed: they read slopes where they were when they were captured.

A CUDA graph is a list of operations on fixed memory. On a CPU that is what make_fx records of a pass and its backward.
"""

import pytest
import torch
from spikingjelly.activation_based import neuron
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from sage_snn import SAGE, Aligned, Fixed, Learnable, LIFNode, Scheduled, find_layers, policy_of
from sage_snn.control import nodes_of, tap
from sage_snn.kernels import switched_off
from sage_snn.laws import DeadZoneTanh
from sage_snn.layers import NormLIF
from sage_snn.policies import DS_ATGO, MPD_AGL, GainMatched

LAW = DeadZoneTanh(dead_zone=0.0)


def train(model, policy, images, steps):
    for i in range(steps):
        model(images.roll(i, 0) * (1 + i / 10)).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
        policy.step()


MOVING = {
    "scheduled": lambda model: Scheduled(model, 1.0, 8.0, steps=30),
    "group": lambda model: SAGE(model, warmup_steps=0, law=LAW),
    "same step": lambda model: SAGE(model, warmup_steps=0, law=LAW, same_step=True),
    "head": lambda model: SAGE(model, warmup_steps=0, law=LAW, per="head"),
    "channel": lambda model: SAGE(
        model, warmup_steps=0, law=LAW, per="channel", source="firing", groups=find_layers(model)
    ),
    "MPD-AGL": lambda model: MPD_AGL(model),
    "DS-ATGO": lambda model: DS_ATGO(model),
    "gain": lambda model: GainMatched(model),
}


@pytest.mark.parametrize("attach", MOVING.values(), ids=MOVING)
def test_slopes_move_and_their_tensors_stay_where_they_are(ours, images, attach):
    model = ours()
    with attach(model) as policy:
        train(model, policy, images, 2)  # the first pass shows how many channels there are
        held = [node.slope.tensor for node in policy._nodes.nodes]
        places, before = [tensor.data_ptr() for tensor in held], [tensor.clone() for tensor in held]
        train(model, policy, images, 20)
        assert [node.slope.tensor.data_ptr() for node in policy._nodes.nodes] == places
        assert any(not torch.equal(a, b) for a, b in zip(before, held, strict=True))


def test_a_slope_that_was_handed_out_is_not_written(ours):
    model = ours()
    with Scheduled(model, 1.0, 8.0, steps=2) as policy:
        node = policy._nodes.nodes[0]
        frozen = node.slope()
        policy.step()
        assert frozen.item() == 1.0
        assert node.slope().item() == pytest.approx(8**0.5)


def test_a_captured_graph_follows_new_slopes(ours, images):
    model, images = ours(depth=1, dim=16).double(), images.double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 0.0  # running statistics would move with every replay
    parameters = list(model.parameters())

    def gradients(x):
        return torch.autograd.grad(model(x).square().sum(), parameters)

    with Scheduled(model, 1.0, 8.0, steps=4) as policy, switched_off():  # the kernels are no operations of torch
        captured = make_fx(gradients)(images)
        first = captured(images)
        for _ in range(4):
            policy.step()
        now, expected = captured(images), gradients(images)
    assert all(torch.equal(a, b) for a, b in zip(now, expected, strict=True))
    assert sum(not torch.equal(a, b) for a, b in zip(now, first, strict=True)) > len(parameters) // 2


def fused_pair():
    return NormLIF(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), LIFNode(step_mode="m", carry_state=False))


@pytest.mark.slow
def test_twenty_slopes_are_one_graph_on_cuda_as_far_as_tracing_goes():
    torch.compiler.reset()
    with FakeTensorMode():
        with torch.device("cuda"):
            model, images = nn.Sequential(fused_pair(), fused_pair()), torch.randn(2, 4, 3, 8, 8)
        policy, compiled = Scheduled(model, 1.0, 8.0, steps=20), torch.compile(model, backend="eager", fullgraph=True)
        for i in range(20):
            with torch.compiler.set_stance("fail_on_recompile" if i else "default"):
                assert compiled(images).device.type == "cuda"
            policy.step()


def capture(module):
    """Puts a function of its own in the place of `forward`, as torch.cuda.make_graphed_callables does."""

    def make_graphed_forward(forward):
        def new_fwd(*inputs):
            return forward(*inputs)

        return new_fwd

    module.forward = make_graphed_forward(module.forward)


FOLLOWS = {
    "SAGE": lambda model: SAGE(model, warmup_steps=0),
    "scheduled": lambda model: Scheduled(model, steps=3),
    "fixed": Fixed,
    "DS-ATGO": DS_ATGO,
}


@pytest.mark.parametrize("attach", FOLLOWS.values(), ids=FOLLOWS)
def test_a_model_that_is_captured_with_its_policy_is_trained(ours, images, attach):
    model = ours()
    with attach(model) as policy:
        capture(model.blocks[1])
        before = [parameter.clone() for parameter in model.parameters()]
        train(model, policy, images, 2)
        assert policy_of(model) is policy  # a refusal would have removed it
        assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


REFUSED = {
    "learnable": (Learnable, "get no gradient there"),
    "gain": (GainMatched, "gradients at nodes are not handed over"),
    "token": (lambda model: SAGE(model, warmup_steps=0, per="token"), "slopes per token are made anew"),
    "trial": (lambda model: Aligned(model, lambda batch: model(batch).sum()), "trials take half a batch"),
}


@pytest.mark.parametrize(("attach", "why"), REFUSED.values(), ids=REFUSED)
def test_what_a_captured_graph_cannot_follow_is_refused_at_the_first_step(ours, images, attach, why):
    model = ours()
    policy = attach(model)
    capture(model.blocks[1])
    model(images).sum().backward()
    with pytest.raises(RuntimeError, match=f"captured in a CUDA graph.*{why}.*without make_graphed_callables"):
        policy.step_after(images)
    assert all(node.slope is None for node in nodes_of(model))


def test_foreign_nodes_in_a_captured_graph_may_have_a_fixed_slope_and_no_other(ours, images):
    model = ours(neuron=neuron.LIFNode)
    for attach in (Fixed, lambda model: Scheduled(model, steps=3)):
        policy = attach(model)
        capture(model.blocks[1])
        model(images).sum().backward()
        if attach is Fixed:
            policy.step()
            policy.remove()
        else:
            with pytest.raises(RuntimeError, match=r"keep their slope as a number; build the model with sage_snn\.LIF"):
                policy.step()
        del model.blocks[1].forward


def test_replays_are_read_though_no_hook_tells_of_them(ours, images, monkeypatch):
    model = ours()
    with SAGE(model, warmup_steps=0) as sage:
        monkeypatch.setattr(tap, "is_capturing", lambda tensor: True)
        model(images).sum().backward()
        kept = [each.sums.clone() for each in sage._reader.all_taps]
        sage.step()
        expected = sage.dispersion
        for each, sums in zip(sage._reader.all_taps, kept, strict=True):
            each.sums.copy_(sums)  # what a replay adds up
        sage.step()
        assert torch.equal(sage.dispersion, expected)
