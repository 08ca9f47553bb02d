"""What policies put on nodes, inside one compiled graph."""

import copy

import pytest
import torch
from torch import nn

from sage_snn.layers import NormLIF
from sage_snn.neurons import LIFNode
from sage_snn.surrogate import LearntSlope, WrittenSlope, log_slope

T = 3
pytestmark = pytest.mark.slow


class Total:
    """Adds up the moments of all passes."""

    def __init__(self):
        self.moments = torch.zeros(T, 4, dtype=torch.float64)

    def __call__(self, moments):
        self.moments = self.moments + moments


class Pair(nn.Module):
    """Normalisation and neuron in one, and a lone neuron."""

    def __init__(self):
        super().__init__()
        self.fused = NormLIF(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), LIFNode(step_mode="m", carry_state=False))
        self.lone = LIFNode(step_mode="m", carry_state=False)

    def forward(self, x):
        return self.lone(2 * self.fused(x)).mean()


def prepared(case):
    torch.manual_seed(0)
    model = Pair().double()
    for node in (model.fused.lif, model.lone):
        node.slope = {
            "scalar": WrittenSlope(3.0),
            "steps": LearntSlope(log_slope(3.0, T)),
            "neurons": lambda: torch.linspace(2, 4, 10).double().view(1, 1, 1, 10),
        }[case]
        node.membranes = Total()
        node.gradients = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        if case != "scalar":
            node.set_constants(nn.Parameter(torch.full((T,), 0.6).double()), nn.Parameter(torch.tensor(1.8).double()))
    return model


@pytest.mark.parametrize("case", ["scalar", "steps", "neurons"])
def test_one_graph_gives_moments_and_gradients_of_eager(case):
    torch.compiler.reset()
    found = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)):
        model = copy.deepcopy(prepared(case))
        run = wrap(model)
        for seed in (0, 1):
            x = torch.randn(T, 2, 4, 10, generator=torch.Generator().manual_seed(seed)).double()
            run(x).backward()
        nodes = model.fused.lif, model.lone
        learnt = [node.slope.parameter.grad for node in nodes if isinstance(node.slope, LearntSlope)]
        extras = [t for node in nodes for t in (node.membranes.moments, node.gradients.grad)]
        found.append([*extras, *learnt, *(p.grad for p in model.parameters())])
    assert found[0][0][:, 0].tolist() == [160.0] * T  # of two passes
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(*found, strict=True))
