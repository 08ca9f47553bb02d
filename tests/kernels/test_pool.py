import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.layers import SpikePool


def twin(x):
    return F.max_pool2d(x, 3, stride=2, padding=1)


def run(function, x):
    """Largest values and the gradient of x."""
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = function(leaf)
    (out * torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)).sum().backward()
    return out.detach(), leaf.grad


def spikes(*size, dtype=torch.float64, seed=0, rate=0.3):
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(size, generator=generator) < rate).to(dtype)
    return x.contiguous(memory_format=torch.channels_last)


@settings(deadline=None, max_examples=100)
@given(
    st.tuples(st.integers(1, 4), st.integers(2, 140), st.integers(2, 12), st.integers(1, 12)),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_kernel_equals_torch(size, dtype, binary):
    x = spikes(*size, dtype=dtype)
    x = x if binary else (x * torch.randn(size).to(dtype)).contiguous(memory_format=torch.channels_last)
    (ours, grad), (theirs, expected) = run(SpikePool(), x), run(twin, x)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(grad, expected, rtol=1e-6, atol=1e-6)


def test_of_equal_values_the_first_counts():
    x = torch.ones(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    assert torch.equal(run(SpikePool(), x)[1], run(twin, x)[1])


def test_nan_and_infinity_are_treated_as_by_torch():
    x = spikes(2, 5, 7, 6, dtype=torch.float32)
    x[0, 1, 3, 2], x[1, 2, 0, 0], x[0, 4] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad():
        assert torch.equal(SpikePool()(x).nan_to_num(nan=7.0), twin(x).nan_to_num(nan=7.0))


def test_bits_do_not_depend_on_the_number_of_threads(with_threads):
    x = spikes(3, 70, 9, 8, dtype=torch.float32)
    found = with_threads(lambda: run(SpikePool(), x))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_only_bytes_are_kept_for_backward():
    x, kept = spikes(2, 64, 8, 8, dtype=torch.float32).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = SpikePool()(x)
    assert [(t.dtype, t.numel()) for t in kept] == [(torch.uint8, out.numel())]


@pytest.mark.parametrize("size", [(0, 3, 8, 8), (2, 3, 8, 8)], ids=["empty", "contiguous"])
def test_what_the_kernel_does_not_take_goes_to_torch(size):
    x = torch.rand(size)
    assert torch.equal(SpikePool()(x), twin(x))


def test_without_kernels_torch_pools(off):
    x = spikes(2, 5, 8, 8)
    assert all(torch.equal(a, b) for a, b in zip(run(SpikePool(), x), run(twin, x), strict=True))


@pytest.mark.slow
def test_compiled_graph_is_one_and_gives_the_gradients_of_eager():
    torch.compiler.reset()
    x = spikes(2, 5, 8, 8, dtype=torch.float32)
    compiled = torch.compile(SpikePool(), backend="aot_eager", fullgraph=True)
    assert all(torch.equal(a, b) for a, b in zip(run(compiled, x), run(SpikePool(), x), strict=True))
