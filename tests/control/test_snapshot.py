import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sage_snn import LIFNode
from sage_snn.control import unchanged

X = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0))


def test_inside_nodes_start_from_rest_and_go_on_afterwards_where_they_were():
    node, fresh = LIFNode(step_mode="m"), LIFNode(step_mode="m")
    node(X)
    v = node.v
    with unchanged(node):
        assert torch.equal(node(2 * X), fresh(2 * X))
        assert not torch.equal(node.v, v)
    assert node.v is v


def test_a_checkpointed_pass_is_replayed_from_its_own_membrane_though_others_came_between():
    found = []
    for is_disturbed in (False, True):
        node, x = LIFNode(step_mode="m"), X.clone().requires_grad_()
        node(X)
        spikes = checkpoint(node, x, use_reentrant=False)
        if is_disturbed:
            with unchanged(node):
                node(3 * X)
        spikes.sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_attributes_that_a_pass_makes_changes_or_replaces_are_what_they_were():
    module = nn.BatchNorm1d(4)
    module.note, mean = "before", module.running_mean
    with unchanged(module):
        module(torch.randn(8, 4))
        module.note, module.new, module.running_mean = "inside", 1, torch.ones(4)
        module.eval()
    assert (module.note, hasattr(module, "new"), module.training) == ("before", False, True)
    assert module.running_mean is mean
    assert mean.tolist() == [0.0] * 4
    assert module.num_batches_tracked == 0
