"""Graphs that were captured before a policy was attached: our nodes' slopes are in tensors that such a graph reads."""

import copy

import pytest
import torch
from spikingjelly.activation_based import neuron
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sage_snn import SAGE, Fixed, Learnable, Scheduled
from sage_snn.control import nodes_of
from sage_snn.kernels import switched_off
from sage_snn.neurons import lif
from sage_snn.policies import MPD_AGL


@pytest.fixture(autouse=True)
def _on_a_device_with_graphs(monkeypatch):
    """CPU tensors count as tensors of a device on which graphs can be captured."""
    monkeypatch.setattr(lif, "may_be_captured", lambda tensor: not torch.compiler.is_compiling())


def captured(module):
    """Marked as torch.cuda.make_graphed_callables leaves a module."""

    def make_graphed_forward(forward):
        def new_fwd(*inputs):
            return forward(*inputs)

        return new_fwd

    module.forward = make_graphed_forward(module.forward)
    return module


def still(model):
    """Running statistics would move with every replay."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 0.0
    return model


def test_a_graph_captured_before_follows_a_policy_and_returns_to_the_base_without_it(ours, images):
    model, images = still(ours(depth=1, dim=16).double()), images.double()
    parameters = list(model.parameters())

    def gradients(x):
        return torch.autograd.grad(model(x).square().sum(), parameters)

    with switched_off():  # the kernels are no operations of torch
        at_base = gradients(images)  # a pass comes before every capture
        graph = make_fx(gradients)(images)
        with Scheduled(model, 1.0, 8.0, steps=4) as policy:
            for _ in range(4):
                policy.step()
            now, expected = graph(images), gradients(images)
        after = graph(images)
    assert all(torch.equal(a, b) for a, b in zip(now, expected, strict=True))
    assert sum(not torch.equal(a, b) for a, b in zip(now, at_base, strict=True)) > len(parameters) // 2
    assert all(torch.equal(a, b) for a, b in zip(after, at_base, strict=True))


@pytest.mark.parametrize("attach", [Fixed, lambda model: Scheduled(model, steps=3)], ids=["fixed", "scheduled"])
def test_policies_that_only_write_may_come_later(ours, images, attach):
    model = ours()
    model(images).sum().backward()
    captured(model.blocks[1])
    with attach(model) as policy:
        held = [node.slope.tensor for node in policy._nodes.nodes]
        assert [tensor.data_ptr() for tensor in held] == [
            node.own_slope.tensor.data_ptr() for node in policy._nodes.nodes
        ]
        model(images).sum().backward()
        policy.step()


def test_sage_may_come_later_where_what_it_reads_is_not_captured(ours, images):
    model = ours()
    model(images).sum().backward()
    captured(model.blocks[0].mlp), captured(model.blocks[1].mlp)
    with SAGE(model, warmup_steps=0) as sage:
        model(images).sum().backward()
        sage.step()
        assert sage.dispersion.isfinite().all()


LATE = {
    "SAGE": lambda model: SAGE(model, warmup_steps=0),
    "same step": lambda model: SAGE(model, warmup_steps=0, same_step=True),
    "head": lambda model: SAGE(model, warmup_steps=0, per="head"),
    "learnable": Learnable,
    "MPD-AGL": MPD_AGL,
}


@pytest.mark.parametrize("attach", LATE.values(), ids=LATE)
def test_what_reads_learns_or_has_finer_slopes_must_come_first(ours, images, attach):
    model = ours()
    model(images).sum().backward()
    captured(model.blocks[1])
    with pytest.raises(RuntimeError, match=r"captured in a CUDA graph, which .*; attach the policy first"):
        attach(model)
    assert all(node.slope is None for node in nodes_of(model))
    del model.blocks[1].forward
    attach(model).remove()


def test_nodes_of_spikingjelly_are_refused_with_the_cure(ours, images):
    model = ours(neuron=neuron.LIFNode)
    captured(model.blocks[1])
    with pytest.raises(RuntimeError, match=r"slopes that are numbers.*build it with sage_snn\.LIFNode"):
        Scheduled(model, steps=3)


def test_a_capture_without_a_pass_before_it_is_refused(ours):
    model = ours()
    captured(model.blocks[1])
    with pytest.raises(RuntimeError, match="no pass on its device came before; attach the policy first"):
        Scheduled(model, steps=3)


def test_a_slope_is_not_made_in_the_middle_of_a_capture(ours, images, monkeypatch):
    monkeypatch.setattr(lif, "is_capturing", lambda tensor: True)
    model = ours()
    model(images)
    assert all(node.own_slope is None for node in nodes_of(model))


def test_a_slope_that_the_user_writes_is_taken_and_copies_have_their_own(ours, images):
    model = ours()
    model(images)
    twin, node = copy.deepcopy(model), nodes_of(model)[3]
    node.surrogate_function.alpha = 7.0
    model(images)
    assert node.own_slope.tensor.item() == 7.0
    assert nodes_of(twin)[3].own_slope.tensor.item() == 4.0
