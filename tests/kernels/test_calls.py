from contextlib import nullcontext

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from sage_snn.layers import NormLIF, StatelessLIF

NAMES = {"sage_snn::norm_lif", "sage_snn::norm_lif_backward"}


class Seen(TorchDispatchMode):
    """Whoever looks at every operation."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **kwargs or {})


def step(context):
    """Spikes and gradients of one unit."""
    torch.manual_seed(0)
    unit = NormLIF(nn.Identity(), nn.BatchNorm1d(6), StatelessLIF(tau=2.0, step_mode="m"))
    x = torch.randn(4, 2, 6, 5, requires_grad=True)
    with context as told:
        spikes = unit(x)
        spikes.square().sum().backward()
    return [spikes, x.grad, unit.norm.weight.grad, unit.norm.running_var], told


def test_whoever_looks_sees_the_operators_and_nothing_else_changes():
    alone, _ = step(nullcontext())
    counted, seen = step(Seen())
    profiled, told = step(profile(activities=[ProfilerActivity.CPU]))
    assert seen.names >= NAMES
    assert {event.name for event in told.events()} >= NAMES
    for results in (counted, profiled):
        assert all(a.equal(b) for a, b in zip(alone, results, strict=True))


def test_a_compiled_graph_is_made_of_operators():
    from torch._dynamo.testing import CompileCounterWithBackend

    unit = NormLIF(nn.Identity(), nn.BatchNorm1d(6), StatelessLIF(tau=2.0, step_mode="m")).eval()
    counter = CompileCounterWithBackend("aot_eager")
    x = torch.randn(4, 2, 6, 5)
    with torch.no_grad():
        expected = unit(x)
        assert torch.compile(unit, backend=counter, fullgraph=True)(x).equal(expected)
    assert counter.frame_count == 1
    assert any("sage_snn.norm_lif" in str(node.target) for graph in counter.graphs for node in graph.graph.nodes)
    torch.compiler.reset()
