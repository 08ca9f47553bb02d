"""What torch asks of operators: results like those of the fakes, in dtype, shape and strides, and no hidden aliases."""

import pytest
import torch

from sage_snn.kernels.lif import Membrane

TESTS = ("test_schema", "test_faketensor")
BACKWARD = {"detach_reset": False, "shape": "ATan", "wants_slope": True}
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
everything = pytest.mark.parametrize("everything", [False, True], ids=["plain", "all sums"])


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def options(everything, times):
    """Of forward and backward operators."""
    constants = {"thresholds": torch.full((times,), 0.5), "time_constant": torch.tensor(1.5)} if everything else {}
    asked = {"wants_constants": True, "wants_squares": True} if everything else {}
    forward = Membrane().options | constants
    return forward | ({"near": 0.5} if everything else {}), forward | BACKWARD | asked


@precisions
@everything
def test_lif(dtype, everything):
    x, v, (forward, backward) = torch.randn(4, 3, 10).to(dtype), torch.zeros(3, 10), options(everything, 4)
    for currents in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        torch.library.opcheck(torch.ops.sage_snn.lif.default, (currents, v), forward, test_utils=TESTS)
        inputs = x, None, currents, v, torch.tensor(4.0)
        torch.library.opcheck(torch.ops.sage_snn.lif_backward.default, inputs, backward, test_utils=TESTS)


@precisions
@everything
def test_norm_lif(dtype, everything):
    x, (forward, backward) = torch.randn(4, 3, 10).to(dtype), options(everything, 2)
    chosen, statistics = {"times": 2, "eps": 1e-5}, (torch.zeros(3), torch.ones(3))
    for images, residual in ((x, None), (channels_last(x), x)):
        inputs = images, None, None, *((None, None) if everything else statistics), residual
        torch.library.opcheck(torch.ops.sage_snn.norm_lif.default, inputs, forward | chosen, test_utils=TESTS)
        inputs = x, images, None, None, *statistics, residual, torch.tensor([4.0, 3.0])
        own = backward | chosen | {"training": everything}
        torch.library.opcheck(torch.ops.sage_snn.norm_lif_backward.default, inputs, own, test_utils=TESTS)


@precisions
def test_norm(dtype):
    x, statistics = torch.randn(4, 3, 10).to(dtype), (torch.zeros(3), torch.ones(3))
    for images in (x, channels_last(x)):
        inputs = images, None, None, *statistics
        torch.library.opcheck(torch.ops.sage_snn.norm.default, inputs, {"eps": 1e-5}, test_utils=TESTS)
        inputs = x, images, None, *statistics
        chosen = {"eps": 1e-5, "training": True}
        torch.library.opcheck(torch.ops.sage_snn.norm_backward.default, inputs, chosen, test_utils=TESTS)
