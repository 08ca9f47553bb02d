"""Thresholds and time constants that are tensors: the same spikes, and gradients of the smooth surrogate."""

import pytest
import torch

from sage_snn.kernels.lif import Membrane, lif
from sage_snn.kernels.norm_lif import norm_lif

T = 4
KINDS = [
    {"reset": reset, "decay_input": decays, "detach_reset": detaches}
    for reset in (0.0, -0.2, None)
    for decays in (True, False)
    for detaches in (True, False)
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: ", ".join(map(str, kind.values())))
sizes = pytest.mark.parametrize("size", [(50,), (2, 3, 64)], ids=str)
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["positions last", "channels last"])
per_step = pytest.mark.parametrize("thresholds", [1, T], ids=["one threshold", "a threshold per step"])


def noise(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 1.5 + 0.4


def weights(x):
    return torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view_as(x)


def constants(thresholds, dtype=torch.float64):
    threshold = torch.tensor([0.8, 0.5, 1.1, 0.7], dtype=dtype) if thresholds > 1 else torch.tensor(0.8, dtype=dtype)
    return threshold.requires_grad_(), torch.tensor(1.7, dtype=dtype).requires_grad_()


def gradients(run, *leaves):
    for leaf in leaves:
        leaf.grad = None
    spikes, *last = run()
    loss = (weights(spikes) * spikes).sum() + sum((weights(v) * v).sum() for v in last)
    loss.backward()
    return [spikes.detach(), *(leaf.grad for leaf in leaves)]


def assert_close(ours, expected, tolerance=1e-9):
    assert 0.02 < expected[0].mean() < 0.9
    assert torch.equal(ours[0], expected[0])
    for a, b in zip(ours[1:], expected[1:], strict=True):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@kinds
@sizes
@per_step
def test_gradients_equal_autograd_through_the_smooth_spike(straight, either, kind, size, thresholds):
    x, v = noise(T, *size).requires_grad_(), noise(*size, seed=1).requires_grad_()
    slope = torch.tensor(2.5, dtype=torch.float64)
    threshold, tau = leaves = constants(thresholds)
    ours = gradients(lambda: lif(x, v, slope, Membrane(tau, threshold, **kind)), x, v, *leaves)
    expected = gradients(lambda: straight(x, v, slope, threshold=threshold, tau=tau, **kind)[:2], x, v, *leaves)
    assert_close(ours, expected)


@kinds
@both_layouts
@per_step
def test_fused_gradients_equal_autograd_through_the_smooth_spike(straight, either, kind, last, thresholds):
    x, residual = (noise(T * 2, 5, 37, seed=seed) for seed in (0, 1))
    x = (x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x).requires_grad_()
    residual.requires_grad_()
    slope = torch.linspace(2, 4, T, dtype=torch.float64)
    threshold, tau = leaves = constants(thresholds)

    def fused():
        membrane = Membrane(tau, threshold, **kind)
        return [norm_lif(x, None, None, None, None, slope, membrane, T, training=True, residual=residual)]

    def plain():
        currents = (torch.nn.functional.batch_norm(x, None, None, training=True) + residual).unflatten(0, (T, -1))
        start = torch.full_like(currents[0], kind["reset"] or 0.0)
        spikes = straight(currents, start, slope.view(T, 1, 1, 1), threshold=threshold, tau=tau, **kind)[0]
        return [spikes.flatten(0, 1)]

    assert_close(gradients(fused, x, residual, *leaves), gradients(plain, x, residual, *leaves))


@kinds
def test_gradients_of_one_step_equal_finite_differences_of_the_smooth_spike(either, kind):
    x, v, slope = noise(1, 50), noise(50, seed=1), torch.tensor(2.5, dtype=torch.float64)
    leaves = constants(1)

    def smooth(threshold, tau):
        rest = kind["reset"] or 0.0
        h = v + (x - (v - rest)) / tau if kind["decay_input"] else v - (v - rest) / tau + x
        return (weights(x) * torch.sigmoid(2.5 * (h - threshold))).sum().item()

    spikes = lif(x, v, slope, Membrane(leaves[1], leaves[0], **kind))[0]
    found = torch.autograd.grad((weights(x) * spikes).sum(), leaves)
    e = 1e-6
    assert found[0].item() == pytest.approx((smooth(0.8 + e, 1.7) - smooth(0.8 - e, 1.7)) / (2 * e), rel=1e-6)
    assert found[1].item() == pytest.approx((smooth(0.8, 1.7 + e) - smooth(0.8, 1.7 - e)) / (2 * e), rel=1e-6)


def test_gradient_of_the_threshold_by_hand():
    # One neuron, soft reset, slope 4: charged to 1 at threshold 1, where the surrogate is 1; it fires.
    x, threshold = torch.full((1, 1), 2.0).double(), torch.tensor(1.0).double().requires_grad_()
    spikes, last = lif(x, torch.zeros(1).double(), torch.tensor(4.0), Membrane(threshold=threshold, reset=None))
    assert (spikes.item(), last.item()) == (1.0, 0.0)
    assert torch.autograd.grad(spikes, threshold, retain_graph=True)[0].item() == -1.0
    # The membrane 1 - spike * threshold: -1 for the threshold itself, +1 through the spike that it makes rarer.
    assert torch.autograd.grad(last, threshold)[0].item() == 0.0


@both_layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [(2.0, 1.0), (1.3, 0.3)], ids=str)
def test_tensors_of_the_same_value_are_bit_equal_to_numbers(either, last, dtype, number):
    x = noise(T * 2, 5, 37, dtype=dtype)
    x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
    tau, threshold = (torch.tensor(value, dtype=torch.float64) for value in number)
    found = []
    for membrane in (Membrane(*number), Membrane(tau, threshold), Membrane(tau, threshold.expand(T))):
        a, b = x.clone().requires_grad_(), x.unflatten(0, (T, 2)).clone().requires_grad_()
        fused = norm_lif(a, None, None, None, None, torch.tensor(4.0), membrane, T, training=True)
        lone = lif(b, torch.zeros_like(b[0]), torch.tensor(4.0), membrane)[0]
        for spikes in (fused, lone):
            (weights(spikes) * spikes).sum().backward()
        found.append([fused.detach(), lone.detach(), a.grad, b.grad])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_bits_do_not_depend_on_the_number_of_threads(with_threads):
    x, v = noise(T, 3, 211, dtype=torch.float32).requires_grad_(), torch.zeros(3, 211)
    images = noise(T * 3, 7, 33, dtype=torch.float32).requires_grad_()
    threshold, tau = leaves = constants(T)
    membrane, slope = Membrane(tau, threshold), torch.tensor(4.0)

    def run():
        lone = gradients(lambda: lif(x, v, slope, membrane), x, *leaves)
        options = {"training": True}
        fused = gradients(lambda: [norm_lif(images, *[None] * 4, slope, membrane, T, **options)], images, *leaves)
        return lone + fused

    found = with_threads(run)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_thresholds_that_do_not_fit_are_refused():
    membrane = Membrane(threshold=torch.ones(3))
    with pytest.raises(ValueError, match="3 thresholds, one per time step, do not fit 4 steps"):
        lif(noise(4, 10), torch.zeros(10).double(), torch.tensor(4.0), membrane)
    with pytest.raises(ValueError, match="3 thresholds, one per time step, do not fit 2 steps"):
        norm_lif(noise(4, 3, 10), *[None] * 4, torch.tensor(4.0), membrane, 2, training=True)
