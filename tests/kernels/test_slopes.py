"""Slopes that broadcast over (T, B, C, N): one per token, channel, head, step, or neuron."""

import pytest
import torch

from sage_snn.kernels.lif import Membrane, lif
from sage_snn.kernels.norm_lif import norm_lif

T, B, C = 3, 2, 6
PATTERNS = {
    "token": (1, B, 1, -1),
    "token and step": (T, B, 1, -1),
    "channel": (1, 1, C, 1),
    "head of an image": (1, B, C, 1),
    "neuron": (T, B, C, -1),
}
patterns = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
lengths = pytest.mark.parametrize("length", [(64,), (7, 11)], ids=str)
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["positions last", "channels last"])
with_and_without = pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
DETACHED = Membrane(detach_reset=True)


def channels_last(x):
    """The same values of images (..., C, positions), channels last in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def noise(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 1.7 + 0.6


def slopes(pattern, length, seed=1):
    positions = torch.Size(length).numel()
    shape = [positions if size == -1 else size for size in pattern]
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 2


def over(slope, length):
    """Slopes (t, b, c, n) in the shape of currents (T, B, C, ...)."""
    return slope.unflatten(3, length if slope.shape[3] > 1 else [1] * len(length))


def weighted(spikes):
    return (spikes * torch.cos(torch.arange(spikes.numel(), dtype=spikes.dtype)).view_as(spikes)).sum()


def fused(x, slope, membrane=DETACHED, residual=None, function=norm_lif):
    """Spikes and all gradients of normalisation and neuron in training mode."""
    x = x.detach().clone().requires_grad_()
    weight, bias = (torch.linspace(low, 1.5, C, dtype=x.dtype).requires_grad_() for low in (0.5, -0.2))
    leaves = [x, weight, bias]
    if residual is not None:
        leaves.append(residual := residual.detach().clone().requires_grad_())
    options = {"training": True, "momentum": 0.1, "eps": 1e-5, "shape": "Sigmoid", "residual": residual}
    spikes = function(x, weight, bias, None, None, slope, membrane, T, **options)
    weighted(spikes).backward()
    return [spikes.detach(), *(leaf.grad for leaf in leaves)]


@patterns
@lengths
@both_layouts
@with_and_without
def test_fused_slopes_equal_a_plain_loop(straight, pattern, length, last, residual):
    x, more = noise(T * B, C, *length), noise(T * B, C, *length, seed=3) if residual else None
    slope = slopes(pattern, length)

    def plain(x, weight, bias, mean, var, slope, membrane, times, *, residual, **options):
        normal = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)
        currents = (normal if residual is None else normal + residual).unflatten(0, (times, -1))
        return straight(currents, torch.zeros_like(currents[0]), over(slope, length), detach_reset=True)[0].flatten(
            0, 1
        )

    expected = fused(x, slope, residual=more, function=plain)
    ours = fused(channels_last(x) if last else x, slope, residual=more)
    assert 0.02 < ours[0].mean() < 0.9
    assert torch.equal(ours[0], expected[0])
    for a, b in zip(ours[1:], expected[1:], strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


@patterns
@lengths
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (2, 0, 3, 1)], ids=str)
def test_slopes_of_a_lone_neuron_equal_a_plain_loop(straight, either, pattern, length, order):
    slope, found = slopes(pattern, length), []
    x = noise(T, B, C, *length).flatten(3)
    x = x.permute(order).contiguous().permute(sorted(range(4), key=order.__getitem__)).unflatten(3, length)
    for run in (
        lambda x, v: lif(x, v, slope, Membrane(reset=None)),
        lambda x, v: straight(x, v, over(slope, length), reset=None),
    ):
        a, v = x.detach().clone().requires_grad_(), noise(B, C, *length, seed=2).requires_grad_()
        spikes, last, *_ = run(a, v)
        (weighted(spikes) + weighted(last)).backward()
        found.append([spikes.detach(), last.detach(), a.grad, v.grad])
    assert torch.equal(found[0][0], found[1][0])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


@patterns
@lengths
@both_layouts
@with_and_without
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_slopes_are_bit_equal_to_the_scalar_slope(pattern, length, last, residual, dtype):
    x, more = noise(T * B, C, *length, dtype=dtype), noise(T * B, C, *length, dtype=dtype) if residual else None
    x = channels_last(x) if last else x
    slope = torch.full_like(slopes(pattern, length), 3.3)
    found = [fused(x, s, residual=more) for s in (slope, torch.tensor(3.3, dtype=torch.float64))]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    currents, found = x.unflatten(0, (T, B)), []
    for s in (slope, torch.tensor(3.3, dtype=torch.float64)):
        a = currents.detach().clone().requires_grad_()
        weighted(lif(a, torch.zeros_like(a[0]), s, Membrane())[0]).backward()
        found.append(a.grad)
    assert torch.equal(*found)


@patterns
@both_layouts
@pytest.mark.parametrize("length", [(5,), (150,)], ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(with_threads, pattern, last, length):
    x = noise(T * B, C, *length, dtype=torch.float32)
    x, slope = channels_last(x) if last else x, slopes(pattern, length)
    found = with_threads(lambda: fused(x, slope, Membrane()))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@both_layouts
def test_backward_reads_the_slopes_as_they_are_then(either, last):
    x, grads = noise(T * B, C, 70), []
    x = channels_last(x) if last else x
    written = slopes(PATTERNS["token"], (70,))
    for first in (torch.ones_like(written), written):
        a, slope = x.clone().requires_grad_(), first.clone()
        spikes = norm_lif(a, None, None, None, None, slope, DETACHED, T, training=True)
        slope.copy_(written)
        weighted(spikes).backward()
        grads.append(a.grad)
    assert torch.equal(*grads)


def test_slopes_that_want_a_gradient_get_one_in_their_shape():
    x, slope = noise(T * B, C, 20), slopes(PATTERNS["channel"], (20,))
    per_channel, grads = slope.clone().requires_grad_(), []
    weighted(norm_lif(x, None, None, None, None, per_channel, DETACHED, T, training=True)).backward()
    for c in range(C):  # a channel at a time, all others out of sight
        one = slope[0, 0, c, 0].clone().requires_grad_()
        spikes = norm_lif(x, None, None, None, None, one, DETACHED, T, training=True)
        spikes = torch.where(torch.arange(C).view(1, C, 1) == c, spikes, 0 * spikes)
        weighted(spikes).backward()
        grads.append(one.grad)
    assert torch.allclose(per_channel.grad.flatten(), torch.stack(grads), rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(2,), (T, B), (1, B, 5, 1), (1, 1, 1, 10, 1), (T, B, C, 2)], ids=str)
def test_slopes_that_do_not_broadcast_are_refused_with_both_shapes(shape):
    names = r"2 slopes, one per time step, do not fit 3 steps"
    if len(shape) > 1:
        names = (
            rf"slopes \({', '.join(map(str, shape))}\) do not broadcast over .* = \(3, 2, 6, 10\); give \(\), \(T,\)"
        )
    with pytest.raises(ValueError, match=names):
        norm_lif(noise(T * B, C, 2, 5), None, None, None, None, torch.ones(shape), DETACHED, T, training=True)
    with pytest.raises(ValueError, match=names):
        lif(noise(T, B, C, 10), torch.zeros(B, C, 10).double(), torch.ones(shape), Membrane())
