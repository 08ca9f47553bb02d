"""Known traps of SpikingJelly: our code is not caught by them.

Covered where they belong: the slope captured in the forward pass and CUDA graphs (test_policies), one compiled graph
for many slopes and replays of activation checkpointing (test_training_modes).
"""

import copy
import gc

import pytest
import torch
from spikingjelly.activation_based import functional, neuron, surrogate
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import SAGE, Block, Fixed, Learnable, LIFNode, Random
from sage_snn.control import nodes_of


def given(*slopes):
    return lambda z: torch.tensor(slopes, dtype=torch.float64)


def test_a_surrogate_shared_by_all_is_not_moved_for_all(jelly, images):
    model, bystander = jelly(), neuron.LIFNode()
    assert len({id(node.surrogate_function) for node in [*nodes_of(model), bystander]}) == 1  # the trap
    for twin in (model, copy.deepcopy(model)):
        sage = SAGE(twin, warmup_steps=0, signal=Random(), law=given(4.5, 3.5))
        twin(images)
        sage.step()
        assert {n.surrogate_function.alpha for n in nodes_of(twin.patch_embed)} == {4.0}
        assert [{n.surrogate_function.alpha for n in nodes_of(block)} for block in twin.blocks] == [{4.5}, {3.5}]
    assert bystander.surrogate_function.alpha == neuron.LIFNode().surrogate_function.alpha == 4.0


def test_our_nodes_never_share_a_surrogate(ours):
    nodes = nodes_of(ours())
    assert len({id(node.surrogate_function) for node in nodes}) == len(nodes) == 19


def test_slopes_written_into_spikingjellys_nodes_keep_its_fast_path(jelly, images):
    model = jelly()
    for policy in (SAGE(model, warmup_steps=0, signal=Random(), law=given(4.5, 3.5)), None):
        if policy is None:
            policy = Fixed(model, slope=4.5)
        else:
            model(images)
        policy.step()
        functions = [node.surrogate_function for block in model.blocks for node in nodes_of(block)]
        assert {type(function) for function in functions} == {surrogate.Sigmoid}
        assert {type(function.alpha) for function in functions} == {float}
        assert "fast path where it has one" in policy.describe()
        policy.remove()


class OwnShape(surrogate.Sigmoid):
    """A subclass, which SpikingJelly's fast path does not take."""


def test_a_slow_path_is_named(jelly, ours):
    assert "15 nodes of SpikingJelly, slope in a tensor: its loop over time" in Learnable(jelly()).describe()
    assert "10 nodes with OwnShape" in Fixed(jelly(surrogate_function=OwnShape())).describe()
    assert "14 nodes of ours, slope in a tensor" in str(Fixed(ours()))


def test_our_node_keeps_one_sequence_for_backward_and_where_it_started():
    x, kept = torch.rand(4, 2, 8, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        LIFNode(step_mode="m", carry_state=False)(x).sum().backward()
    assert sorted(kept) == [x[0].numel(), x.numel()]


def test_readings_go_into_the_same_memory_at_every_step(ours, images):
    """What a compiled graph writes into must not be replaced behind its back."""
    model = ours()
    sage = SAGE(model, warmup_steps=0)
    held = [tap.sums.data_ptr() for tap in sage._reader.all_taps]
    for _ in range(3):
        model(images)
        sage.step()
    assert [tap.sums.data_ptr() for tap in sage._reader.all_taps] == held


@pytest.mark.parametrize(
    "function", ["Sigmoid", "ATan", "PiecewiseQuadratic", "PiecewiseExp", "SoftSign", "SuperSpike", "Erf"]
)
def test_every_surrogate_of_the_fast_path_gives_the_slope_a_gradient(function):
    nodes = [
        make(surrogate_function=getattr(surrogate, function)(), step_mode="m") for make in (LIFNode, neuron.LIFNode)
    ]
    found = []
    for node in nodes:
        policy = Learnable(nn.Sequential(node), blocks=[Block([node], read=lambda block: None)])
        node(3 * torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).sum().backward()
        found.append(next(policy.parameters()).grad.item())
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0] != 0


class OwnNode(neuron.LIFNode):
    """A neuron of the user's."""


@pytest.mark.parametrize("kind", [LIFNode, neuron.LIFNode, OwnNode])
def test_another_neuron_class_keeps_thresholds_detached_reset_and_float_constants(ours, images, kind):
    model = ours(neuron=kind)
    nodes = nodes_of(model)
    assert all(type(node) is kind for node in nodes)
    assert all(node.detach_reset and node.step_mode == "m" and node.decay_input for node in nodes)
    assert all((type(node.tau), node.tau) == (float, 2.0) for node in nodes)
    attention = {id(block.attention.lif) for block in model.blocks}
    assert all(node.v_threshold == (0.5 if id(node) in attention else 1.0) for node in nodes)
    assert all(type(node.v_threshold) is float for node in nodes)
    assert model(images).isfinite().all()


@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "not reentrant", "reentrant"])
@pytest.mark.parametrize("same_step", [False, True])
def test_a_slope_written_before_backward_raises_nothing(ours, images, same_step, reentrant):
    model = ours()
    sage = SAGE(model, warmup_steps=0, same_step=same_step, signal=Random(), law=given(4.5, 3.5))
    if reentrant is not None:
        for block in model.blocks:
            forward = block.forward
            block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=reentrant)
    loss = model(images).sum()
    if reentrant:  # the reentrant kind is read in its replay, so there is nothing to step on before
        sage._nodes.write(torch.full((14,), 4.5, dtype=torch.float64))
    else:
        sage.step()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", [None, neuron.LIFNode], ids=["ours", "jelly"])
def test_reset_cannot_be_forgotten(ours, settle, images, kind):
    model = settle(ours(**({} if kind is None else {"neuron": kind})), images).eval()
    first = model(images)
    assert first.any()
    assert torch.equal(model(images), first)
    assert torch.equal(model(images[:2]), first[:2])  # not even after another batch size


def test_memory_does_not_grow_and_no_graph_survives_a_step(ours, images):
    model = ours()
    sage = SAGE(model, warmup_steps=0)

    def tensors_after_a_step():
        model(images).sum().backward()
        sage.step()
        model.zero_grad()
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    for _ in range(3):
        tensors_after_a_step()
    counts = [tensors_after_a_step() for _ in range(4)]
    assert counts[-1] <= counts[0]  # other tests' leftovers may be collected meanwhile
    assert all(isinstance(node.v, float) for node in nodes_of(model))


def test_spikingjellys_own_reset_works_on_an_attached_model(jelly, images):
    model = jelly()
    with SAGE(model, warmup_steps=0) as sage:
        for _ in range(2):
            model(images).sum().backward()
            sage.step()
            functional.reset_net(model)
        assert all(isinstance(node.v, float) for node in nodes_of(model))
