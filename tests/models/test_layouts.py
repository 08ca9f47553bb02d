"""The order of memory on a GPU, as far as tensors without values show it."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sage_snn.layers import NormLIF, TokenMap
from sage_snn.models import qkformer, resnet20, spikformer, spikingresformer

SMALL = {"time_steps": 2, "image_size": 16}
NETWORKS = {
    "spikformer": lambda: spikformer(depth=2, dim=32, heads=4, **SMALL),
    "qkformer": lambda: qkformer(depth=3, dim=32, heads=2, **SMALL),
    "spikingresformer": lambda: spikingresformer(heads=(1, 1, 2), depths=(1, 1, 1), head_width=8, **SMALL),
    "resnet20": lambda: resnet20(width=0.25, **SMALL),
}


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_channels_lie_last_in_every_convolution_on_a_gpu(monkeypatch, build, order):
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda weight, **options: weight)  # which looks at its values
    seen = []
    with FakeTensorMode(), torch.no_grad():
        with torch.device("cuda"):
            model = build()
        images = torch.randn(2, 3, 16, 16, device="cuda").contiguous(memory_format=order)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(lambda m, given, made: seen.extend([given[0], made]))
        assert model(images).device.type == "cuda"
    assert len(seen) >= 10
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)


def test_the_order_of_a_user_is_kept_where_nothing_is_fused_on_a_gpu():
    with FakeTensorMode(), torch.no_grad():
        with torch.device("cuda"):
            unit = NormLIF(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Identity())
            x = torch.randn(6, 3, 8, 8).contiguous(memory_format=torch.channels_last).unflatten(0, (2, 3))
        assert unit(x).flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


class Called(TorchDispatchMode):
    """The names of all operators."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_a_token_map_is_a_matrix_product_on_a_gpu_and_keeps_the_order(last, bias):
    with FakeTensorMode(), Called() as called:
        layer, x = TokenMap(8, 6, 1, bias=bias, device="cuda"), torch.randn(4, 8, 5, device="cuda")
        made = layer(x.transpose(1, 2).contiguous().transpose(1, 2) if last else x)
        assert made.shape == (4, 6, 5)
        assert made.is_contiguous() != last
        assert made.device.type == "cuda"
    assert "convolution" not in called.names
    assert called.names & {"mm", "addmm", "bmm", "baddbmm"}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_the_matrix_product_is_the_convolution(last, bias):
    torch.manual_seed(0)
    layer, x = TokenMap(8, 6, 1, bias=bias).double(), torch.randn(4, 8, 5).double()
    expected = nn.Conv1d.forward(layer, x)
    made = layer.product(x.transpose(1, 2).contiguous().transpose(1, 2) if last else x)
    assert torch.allclose(made, expected, rtol=1e-12, atol=1e-12)
    assert made.is_contiguous() != last
