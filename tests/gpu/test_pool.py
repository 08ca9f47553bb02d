import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.kernels.bits import are_marked, mark_spikes
from sage_snn.kernels.gpu import pool as kernels
from sage_snn.kernels.pool import spike_pool

HALF = [torch.float32, torch.float16, torch.bfloat16]


def twin(x):
    return F.max_pool2d(x, 3, stride=2, padding=1)


def run(function, x):
    """Largest values and the gradient of x; gradients are small whole numbers, so that their sums are exact."""
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = function(leaf)
    out.backward(torch.arange(out.numel()).remainder(7).to(out.dtype).view_as(out))
    return out.detach(), leaf.grad


def grad_of_sum(x):
    return torch.autograd.grad(twin(leaf := x.clone().requires_grad_()).sum(), leaf)[0]


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


def spikes(*size, dtype=torch.float32):
    return last((torch.rand(size, generator=torch.Generator().manual_seed(0)) < 0.3).to(dtype))


@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    st.tuples(st.integers(1, 2), st.integers(2, 70), st.integers(1, 7), st.integers(1, 7)),
    st.sampled_from(HALF),
    st.booleans(),
)
def test_kernel_equals_torch(size, dtype, binary):
    x = spikes(*size, dtype=dtype)
    x = x if binary else last(torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype))
    (ours, grad), (theirs, expected) = run(spike_pool, x), run(twin, x)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    assert ours.dtype == grad.dtype == dtype
    assert torch.equal(grad, expected)


def test_one_channel():
    x = torch.randn(2, 1, 5, 6, generator=torch.Generator().manual_seed(0))
    largest, winners = kernels.pool(x)
    assert torch.equal(largest, twin(x))
    assert torch.equal(kernels.pool_backward(torch.ones_like(largest), winners, 5, 6), grad_of_sum(x))


def test_of_equal_values_the_first_counts():
    x = last(torch.ones(1, 2, 4, 4))
    assert kernels.pool(x)[1][0, 0].tolist() == [[4, 3], [1, 0]]
    assert torch.equal(run(spike_pool, x)[1], run(twin, x)[1])


def test_nan_and_infinity_are_treated_as_by_torch():
    x = spikes(2, 5, 7, 6)
    x[0, 1, 3, 2], x[1, 2, 0, 0], x[0, 4] = float("nan"), float("inf"), -float("inf")
    (ours, grad), (theirs, expected) = run(spike_pool, x), run(twin, x)
    assert torch.equal(ours.nan_to_num(nan=7.0), theirs.nan_to_num(nan=7.0))
    assert torch.equal(grad, expected)


def test_a_gradient_in_another_order_is_taken():
    x = spikes(2, 5, 7, 6).requires_grad_()
    out = spike_pool(x)
    out.backward(torch.ones(out.shape))
    assert torch.equal(x.grad, grad_of_sum(x.detach()))


@pytest.mark.parametrize("odd", ["empty", "contiguous", "float64"])
def test_what_the_kernel_does_not_take_goes_to_torch(odd, monkeypatch):
    monkeypatch.setattr(kernels, "launch", None)
    x = torch.rand(0 if odd == "empty" else 2, 3, 8, 8, dtype=torch.float64 if odd == "float64" else torch.float32)
    x = x if odd == "contiguous" else last(x)
    assert torch.equal(spike_pool(x), twin(x))


def test_pooled_spikes_are_spikes_and_pooled_counts_are_not():
    x = spikes(2, 5, 8, 8)
    assert not are_marked(spike_pool(x))
    mark_spikes(x)
    assert are_marked(spike_pool(x))
    assert not are_marked(spike_pool(x + x))


def test_only_bytes_are_kept_for_backward():
    x, kept = spikes(2, 64, 8, 8).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = spike_pool(x)
    assert [(t.dtype, t.numel()) for t in kept] == [(torch.uint8, out.numel())]
