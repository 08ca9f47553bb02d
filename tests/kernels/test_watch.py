"""Moments of membranes from the forward pass, sums of squares of gradients from the backward pass."""

import pytest
import torch

from sage_snn.kernels.lif import Membrane, lif
from sage_snn.kernels.membrane import Watch
from sage_snn.kernels.norm_lif import norm_lif

T = 4
SIZES = [(2, 3, 5), (3, 7, 9, 5), (2, 64, 9), (1, 1, 3000)]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["positions last", "channels last"])
with_and_without = pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
THRESHOLDS = [0.3, torch.tensor([0.8, 0.5, 1.1, 0.7], dtype=torch.float64)]
thresholds = pytest.mark.parametrize("threshold", THRESHOLDS, ids=["one", "per step"])


def noise(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 1.5 + 0.4


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def expected_moments(charged, threshold, near):
    """Of all membranes (T, ...), a step after the other."""
    rows = []
    for h, theta in zip(charged.double(), torch.as_tensor(threshold).double().expand(T), strict=True):
        distance = h - theta
        near_by = (distance.abs() < near).sum().double()
        rows.append(torch.stack([torch.tensor(h.numel()).double(), distance.sum(), distance.square().sum(), near_by]))
    return torch.stack(rows)


def assert_moments(found, expected, dtype):
    """Sums to the precision of what they are sums of: the count times the mean size of an entry."""
    tolerance = 1e-6 if dtype == torch.float32 else 1e-9
    assert (found.shape, found.dtype) == ((T, 4), torch.float64)
    assert torch.equal(found[:, [0, 3]], expected[:, [0, 3]])
    assert 0 < found[:, 3].min() < found[:, 0].min()
    scale = (expected[:, 0] * expected[:, 2]).sqrt()
    assert ((found[:, 1] - expected[:, 1]).abs() / scale).max() < tolerance
    assert torch.allclose(found[:, 2], expected[:, 2], rtol=tolerance, atol=0)


@sizes
@both_layouts
@with_and_without
@precisions
@thresholds
def test_moments_of_the_fused_pair_equal_those_of_all_membranes(straight, size, last, residual, dtype, threshold):
    x, more = (noise(T * size[0], *size[1:], dtype=dtype, seed=seed) for seed in (0, 1))
    x, more = channels_last(x) if last else x, more if residual else None
    seen, slope = [], torch.tensor(4.0)
    membrane, watch = Membrane(threshold=threshold), Watch(seen.append, near=0.25)
    mean, var = torch.zeros(2, size[1], dtype=dtype) + torch.tensor([[0.4], [2.2]], dtype=dtype)
    options = {"training": False, "residual": more}
    spikes = norm_lif(x, None, None, mean, var, slope, membrane, T, watch=watch, **options)
    assert torch.equal(spikes, norm_lif(x, None, None, mean, var, slope, membrane, T, **options))
    # The kernel's own order of operations: one rounding elsewhere could move a membrane over a border.
    gain = (1 / (var.double() + 1e-5).sqrt()).to(dtype)
    view = (1, -1, *[1] * (x.ndim - 2))
    currents = (x - mean.view(view)) * gain.view(view)
    currents = (currents if more is None else currents + more).unflatten(0, (T, -1))
    charged = straight(currents, torch.zeros_like(currents[0]), 4.0, threshold=threshold)[2]
    assert_moments(seen[0], expected_moments(charged, torch.as_tensor(threshold, dtype=dtype), 0.25), dtype)


@sizes
@precisions
@thresholds
def test_moments_of_a_lone_neuron_equal_those_of_all_membranes(straight, either, size, dtype, threshold):
    x, v = noise(T, *size, dtype=dtype), noise(*size, dtype=dtype, seed=1)
    seen, membrane = [], Membrane(1.3, threshold, None, decay_input=False)
    lif(x, v, torch.tensor(4.0), membrane, watch=Watch(seen.append))
    charged = straight(x, v, 4.0, threshold=threshold, tau=1.3, reset=None, decay_input=False)[2]
    assert_moments(seen[0], expected_moments(charged, torch.as_tensor(threshold, dtype=dtype), 0.5), dtype)


def test_moments_by_hand(either):
    # tau 2 from rest: charged to 0.5, 1.25 and 2, of which the last two fire at threshold 1.
    seen = []
    x = torch.tensor([[1.0, 2.5, 4.0]])
    lif(x, torch.zeros(3), torch.tensor(4.0), Membrane(), watch=Watch(seen.append, near=0.5))
    assert seen[0].tolist() == [[3.0, 0.75, 0.25 + 0.0625 + 1.0, 1.0]]


@sizes
@both_layouts
@with_and_without
@precisions
def test_gains_of_the_fused_pair_are_sums_of_squares(size, last, residual, dtype):
    x, more = (noise(T * size[0], *size[1:], dtype=dtype, seed=seed) for seed in (0, 1))
    x, more = channels_last(x) if last else x, more if residual else None
    weights, bias = noise(*x.shape, dtype=dtype, seed=2), torch.zeros(size[1], dtype=dtype)
    gains = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    slope, found, watch = torch.tensor(4.0), [], Watch(gradients=gains)
    for seen in ({"watch": watch}, {}):
        a = x.clone().requires_grad_()
        own = (torch.zeros_like(x) if more is None else more).clone().requires_grad_()
        options = {"training": True, "residual": own if more is not None or not seen else None, **seen}
        spikes = norm_lif(a, None, bias.requires_grad_(), None, None, slope, Membrane(), T, **options)
        (weights * spikes).sum().backward()
        found.append((spikes.detach(), a.grad, own.grad))
    # Adding a residual of zeros changes nothing, and its gradient is that of the currents.
    assert torch.equal(found[0][0], found[1][0])
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)
    expected = torch.stack([weights.double().square().sum(), found[1][2].double().square().sum()])
    assert torch.allclose(gains.grad, expected, rtol=1e-5 if dtype == torch.float32 else 1e-10, atol=0)


@sizes
@precisions
def test_gains_of_a_lone_neuron_are_sums_of_squares_and_add_up(either, size, dtype):
    x, weights = noise(T, *size, dtype=dtype).requires_grad_(), noise(T, *size, dtype=dtype, seed=2)
    gains = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        x.grad = None
        spikes, _ = lif(x, torch.zeros_like(x[0]), torch.tensor(4.0), Membrane(), watch=Watch(gradients=gains))
        (weights * spikes).sum().backward()
    expected = 2 * torch.stack([weights.double().square().sum(), x.grad.double().square().sum()])
    assert torch.allclose(gains.grad, expected, rtol=1e-5 if dtype == torch.float32 else 1e-10, atol=0)


@pytest.mark.parametrize("size", [(3, 7, 9, 5), (1, 1, 5000), (2, 192, 70)], ids=str)
@both_layouts
def test_bits_do_not_depend_on_the_number_of_threads(with_threads, size, last):
    x = noise(T * size[0], *size[1:], dtype=torch.float32)
    x = channels_last(x) if last else x

    def run():
        seen, gains = [], torch.zeros(2, dtype=torch.float64, requires_grad=True)
        watch, slope = Watch(seen.append, gradients=gains), torch.tensor(4.0)
        norm_lif(x, *[None] * 4, slope, Membrane(), T, training=True, watch=watch).square().sum().backward()
        steps = x.unflatten(0, (T, -1))
        lif(steps, torch.zeros_like(steps[0]), slope, Membrane(), watch=watch)[0].square().sum().backward()
        return [*seen, gains.grad]

    found = with_threads(run)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_membranes_are_told_without_gradients_too(either):
    seen = []
    with torch.no_grad():
        lif(noise(T, 30), torch.zeros(30).double(), torch.tensor(4.0), Membrane(), watch=Watch(seen.append))
    assert len(seen) == 1
    assert not seen[0].requires_grad
