"""Groups that a user names: every policy controls their nodes and no others, and refuses groups that share one."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from sage_snn import (
    ASGL,
    DGS,
    DS_ATGO,
    MPD_AGL,
    SAGE,
    Aligned,
    Block,
    Fixed,
    GainMatched,
    Group,
    Learnable,
    LearnableConstants,
    Scheduled,
    Statistics,
    find_blocks,
    find_layers,
)
from sage_snn.control import nodes_of


def loss(batch):
    raise NotImplementedError


POLICIES = {
    "ASGL": ASGL,
    "ASGL without smooth values": partial(ASGL, p=0.0),
    "Aligned": partial(Aligned, loss=loss),
    "DGS": partial(DGS, loss=loss, every=4, batches=2),
    "DS_ATGO": DS_ATGO,
    "Fixed": Fixed,
    "GainMatched": GainMatched,
    "Learnable per network": partial(Learnable, per="network"),
    "Learnable per block": partial(Learnable, per="block"),
    "Learnable per layer": partial(Learnable, per="layer"),
    "Learnable per time step": partial(Learnable, per="time"),
    "LearnableConstants per layer": partial(LearnableConstants, per="layer"),
    "LearnableConstants per group": partial(LearnableConstants, target="time_constant", per="group"),
    "MPD_AGL": MPD_AGL,
    "SAGE": partial(SAGE, warmup_steps=0),
    "SAGE on firing": partial(SAGE, warmup_steps=0, source="firing"),
    "Scheduled": partial(Scheduled, steps=2),
}
each_policy = pytest.mark.parametrize("attach", POLICIES.values(), ids=POLICIES)


def described(model):
    """Both blocks as a user names them: without the nodes after the products of attention, which have no BatchNorm."""
    blocks = zip(model.blocks, find_blocks(model), strict=True)
    return [
        Block([n for n in nodes_of(block) if n is not block.attention.lif], name=found.name, source=found.source)
        for block, found in blocks
    ]


@each_policy
def test_only_the_nodes_of_named_groups_are_controlled(attach, ours):
    model = ours()
    named = described(model)[:1]
    inside = {id(node) for node in named[0].neurons}
    statistics = {"statistics": Statistics(center=False)} if getattr(attach, "func", attach) is SAGE else {}
    with attach(model, groups=named, **statistics) as policy:
        assert {id(node) for node in policy._nodes.nodes} == inside
        assert len(policy.slopes) == 1
        for node in nodes_of(model):
            is_moved = node.slope is not None or node.threshold is not None or node.time_constant is not None
            is_moved |= type(node.surrogate_function).__name__ != "Sigmoid"
            assert is_moved == (id(node) in inside)


@each_policy
@pytest.mark.parametrize("name", ["groups", "blocks"])
def test_groups_that_share_a_node_are_refused(attach, name, ours):
    model = ours()
    first, second = described(model)
    shared = [first, Block([*second.neurons, first.neurons[0]], name="other", source=second.source)]
    with pytest.raises(ValueError, match=r"a neuron belongs to two (block|group)s; give every (Block|Group) its own"):
        attach(model, **{name: shared})
    Fixed(model).remove()
    assert all(node.threshold is None and node.slope is None for node in nodes_of(model))


@each_policy
def test_groups_under_both_names_are_refused(attach, ours):
    model = ours()
    with pytest.raises(ValueError, match="blocks= and groups= name the same thing"):
        attach(model, blocks=described(model), groups=described(model))
    Fixed(model).remove()


def test_groups_that_are_no_blocks_are_called_groups(ours):
    model = ours()
    nodes = nodes_of(model)
    with pytest.raises(ValueError, match="a neuron belongs to two groups; give every Group its own neurons"):
        Fixed(model, groups=[Group(nodes[:2]), Group(nodes[1:3])])
    with pytest.raises(ValueError, match=r"group empty names no nodes; pass Group\(neurons=\[\.\.\.\]\)"):
        Fixed(model, groups=[Group(nodes[:2]), Group([], name="empty")])


@pytest.mark.parametrize("kind", [partial(Learnable, per="layer"), ASGL, LearnableConstants])
def test_all_layers_by_name_are_all_nodes_in_their_order(kind, ours):
    found = []
    for by_name in (False, True):
        model = ours()
        policy = kind(model, groups=find_layers(model) if by_name else None)
        optimizer = torch.optim.SGD([*model.parameters(), *policy.parameters()], lr=0.1)
        for seed in range(3):
            optimizer.zero_grad()
            images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
            F.cross_entropy(model(images), torch.arange(4)).backward()
            optimizer.step()
            policy.step()
        found.append([*model.state_dict().values(), *policy.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
