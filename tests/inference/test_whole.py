import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from sage_snn.inference import WholeSynapse
from sage_snn.kernels.counts import MOST
from sage_snn.layers import TokenMap
from sage_snn.models.convolution import conv

LAYERS = {
    "3x3": (lambda: nn.Conv2d(5, 7, 3, padding=1), (2, 5, 6, 4)),
    "strided": (lambda: conv(16, 24, stride=2), (3, 16, 7, 7)),
    "shortcut": (lambda: conv(6, 10, 1, 2), (2, 6, 5, 5)),
    "groups": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False), (2, 16, 4, 4)),
    "patches": (lambda: nn.Conv2d(8, 16, 2, stride=2, bias=False), (2, 8, 4, 4)),
    "one pixel": (lambda: nn.Conv2d(3, 4, 3, padding=1), (1, 3, 1, 1)),
    "one channel": (lambda: nn.Conv2d(1, 4, 3, padding=1), (2, 1, 5, 5)),
    "tokens": (lambda: TokenMap(12, 20, 1), (3, 12, 5)),
    "one token": (lambda: TokenMap(12, 20, 1, bias=False), (1, 12, 1)),
    "linear": (lambda: nn.Linear(9, 4), (2, 3, 9)),
}


def drawn(shape, most=3):
    return torch.randint(0, most + 1, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_weights_and_currents_worked_out_by_hand():
    layer = nn.Linear(3, 2)
    layer.weight.data = torch.tensor([[0.5, -1.27, 0.254], [0.0, 0.0, 0.0]])
    layer.bias.data = torch.tensor([0.25, -2.0])
    synapse = WholeSynapse(layer)
    assert synapse.weight.tolist() == [[50, -127, 25], [0, 0, 0]]  # 25.4 is rounded
    torch.testing.assert_close(synapse.scale, torch.tensor([0.01, 1.0]))
    # 2 * 50 - 127 + 4 * 25 = 73
    torch.testing.assert_close(synapse(torch.tensor([[2, 1, 4]]).byte()), torch.tensor([[0.98, -2.0]]))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_onednn_gives_what_the_simulation_gives(kind, channels_last):
    torch.manual_seed(0)
    build, shape = LAYERS[kind]
    synapse, x = WholeSynapse(build()), drawn(shape)
    if channels_last and x.ndim > 2 and kind != "linear":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    expected = synapse.simulated(x)
    found = synapse(x)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(synapse(x.float()), expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 0 or expected.numel() == 1


@pytest.mark.parametrize("kind", LAYERS)
def test_rounding_weights_moves_currents_by_half_a_step_of_every_weight_at_most(kind):
    torch.manual_seed(0)
    build, shape = LAYERS[kind]
    layer, x = build(), drawn(shape, 1)
    synapse = WholeSynapse(layer)
    with torch.no_grad():
        exact = layer(x.float())
    fan_in = synapse.weight[0].numel()
    assert (synapse(x) - exact).abs().max() <= synapse.scale.max() * (0.5 * fan_in) * 1.001 + 1e-6
    assert not torch.equal(synapse(x), exact)


@pytest.mark.parametrize("value", [0.5, -1.0, 128.0, float("nan")])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ValueError, match="counts whole numbers from 0 to 127, and was given others; fuse this network"):
        WholeSynapse(nn.Linear(3, 2))(torch.tensor([[1.0, value, 0.0]]))


def test_a_copy_packs_its_weights_anew():
    synapse = WholeSynapse(nn.Linear(9, 4))
    x = drawn((2, 9))
    before = synapse(x)
    assert torch.equal(copy.deepcopy(synapse)(x), before)
    other = WholeSynapse(nn.Linear(9, 4))
    other.load_state_dict(synapse.state_dict())
    assert torch.equal(other(x), before)


AT_THE_LIMIT = f"""
import torch
from torch import nn
from sage_snn.inference import WholeSynapse
for layer, shape in ((nn.Conv2d(32, 16, 3, padding=1), (2, 32, 6, 6)), (nn.Linear(64, 16), (4, 64))):
    layer.weight.data.fill_(1.0)
    synapse, x = WholeSynapse(layer), torch.full(shape, {MOST}, dtype=torch.uint8)
    assert torch.allclose(synapse(x), synapse.simulated(x), rtol=1e-6), (synapse(x) - synapse.simulated(x)).abs().max()
print("exact")
"""


@pytest.mark.slow
def test_the_largest_counts_are_exact_in_the_16_bits_of_avx2():
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([sys.executable, "-c", AT_THE_LIMIT], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "exact", done.stderr
