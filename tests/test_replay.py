"""Activation checkpointing around nodes that carry their membrane: a replay begins where the pass began."""

import pytest
import torch
from spikingjelly.activation_based import functional, neuron
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import SAGE, LIFNode
from sage_snn.control import copied
from sage_snn.deploy import accelerate
from sage_snn.replay import MOST


def gradients(mode, passes, wrap, node=None):
    torch.manual_seed(0)
    node, synapse = node or LIFNode(step_mode=mode), nn.Linear(6, 6).double()
    inputs = [torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True) for _ in range(passes)]

    def region(x):
        currents = 4 * synapse(x)
        return node(currents) if mode == "m" else torch.stack([node(current) for current in currents])

    outputs = [wrap(region, x) for x in inputs]
    sum((out * torch.linspace(0, 1, 6)).sum() for out in outputs).backward()
    afterwards = region(inputs[0].detach()).detach()  # goes on from the membrane that the last pass left
    assert 0 < afterwards.mean() < 1
    return [synapse.weight.grad, *(x.grad for x in inputs), afterwards, node.v.detach()]


def plainly(region, x):
    return region(x)


def kept_apart(region, x):
    return checkpoint(region, x, use_reentrant=False)


def reentrant(region, x):
    return checkpoint(region, x, use_reentrant=True)


@pytest.mark.parametrize(
    ("mode", "passes", "wrap"),
    [("m", 1, kept_apart), ("m", 3, kept_apart), ("s", 1, kept_apart), ("s", 3, kept_apart), ("m", 1, reentrant)],
)
def test_a_replay_gives_the_gradients_of_the_pass(mode, passes, wrap):
    expected = gradients(mode, passes, plainly)
    assert all(torch.equal(a, b) for a, b in zip(gradients(mode, passes, wrap), expected, strict=True))


def test_an_accelerated_node_replays_from_where_the_pass_began():
    node = accelerate(nn.Sequential(neuron.LIFNode(step_mode="m")))[0]
    expected = gradients("m", 2, plainly)
    assert all(torch.equal(a, b) for a, b in zip(gradients("m", 2, kept_apart, node), expected, strict=True))


def test_what_cannot_be_replayed_step_by_step_is_refused_with_the_cure():
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        gradients("s", 1, reentrant)


def test_a_reset_forgets_passes_that_were_never_replayed():
    node = LIFNode(step_mode="m")
    kept_apart(node, torch.randn(2, 3, requires_grad=True))
    functional.reset_net(node)
    later = torch.full((2, 3), 0.7, requires_grad=True)
    kept_apart(node, later).sum().backward()
    plain, again = LIFNode(step_mode="m"), later.detach().clone().requires_grad_()
    plain(again).sum().backward()
    assert torch.equal(later.grad, again.grad)


def test_foreign_nodes_that_carry_state_into_a_replay_are_warned_of(jelly, images):
    model = jelly()
    for block in model.modules():
        if type(block).__name__ == "SpikformerBlock" or hasattr(block, "attn"):
            block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=False)
    with SAGE(model, warmup_steps=0) as sage:
        model(images).sum().backward()
        with pytest.warns(
            UserWarning, match=r"carry their membranes into the replay.*spiking_neuron=sage_snn\.LIFNode"
        ):
            sage.step()


def test_copies_know_of_no_passes_and_many_looks_fill_no_memory():
    node = LIFNode(step_mode="m")
    x = torch.randn(2, 3, requires_grad=True)
    for _ in range(2):
        kept_apart(node, x)  # the second begins with a membrane that hangs on the first one's graph
    twin = copied(nn.Sequential(node))[0][0]
    assert twin.starts is not node.starts
    with torch.no_grad():
        for _ in range(MOST + 50):
            node(x)
    assert len(node.starts._passes) == MOST
    functional.reset_net(node)
    assert len(node.starts._passes) == 0
