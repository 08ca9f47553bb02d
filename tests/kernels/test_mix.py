import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.kernels.additions import additions_told
from sage_snn.kernels.bits import spikes_as_bits
from sage_snn.kernels.events import dense_products
from sage_snn.kernels.mix import mix, mix_twin

SCALE = 0.125


def spikes(size, heads, width, dtype=torch.float64, rate=0.2, seed=0):
    """(T, B, C, N) with channels last in memory."""
    times, batch, tokens = size
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(times, batch, tokens, heads * width, generator=generator) < rate
    return drawn.to(dtype).transpose(2, 3)


def triple(size, heads, width, **options):
    return [spikes(size, heads, width, seed=seed, **options).requires_grad_() for seed in range(3)]


def run(function, parts, heads):
    """What comes out, and the gradients of query, key and value."""
    out = function(*parts, heads, SCALE)
    grad = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
    return out.detach(), *torch.autograd.grad(out, parts, grad)


@settings(deadline=None, max_examples=100)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(2, 20)),
    st.integers(1, 5),
    st.sampled_from([1, 2, 5, 8, 16, 24, 32, 64, 70]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_kernel_equals_torch(size, heads, width, rate):
    parts = triple(size, heads, width, rate=rate)
    ours, theirs = run(mix, parts, heads), run(mix_twin, parts, heads)
    assert torch.equal(ours[0], theirs[0])  # whole sums are exact in any order
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(ours, theirs, strict=True))
    assert all(a.stride() == parts[0].stride() for a in ours[1:] if heads * width > 1)


def test_one_head_worked_out_by_hand():
    # Two tokens, two channels: K^T V = [[1, 1], [0, 1]], so that the rows of Q K^T V are [1, 1] and [1, 2].
    q, k, v = (torch.tensor(rows).view(1, 1, 2, 2).transpose(2, 3) for rows in _rows())
    out = mix(q, k, v, 1, 0.5)
    assert out.transpose(2, 3).flatten().tolist() == [0.5, 0.5, 0.5, 1.0]


def _rows():
    return [[1.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("width", [8, 16, 32, 12])
def test_float32_is_as_exact_as_torch(width):
    parts = triple((2, 3, 40), 3, width, dtype=torch.float32)
    (out, *grads), (theirs, *expected) = run(mix, parts, 3), run(mix_twin, parts, 3)
    assert torch.equal(out, theirs)
    for a, b in zip(grads, expected, strict=True):
        assert (a - b).abs().max() <= 1e-6 * b.abs().max()


def test_the_kernel_runs_only_where_channels_lie_last():
    parts = triple((2, 2, 6), 2, 4)
    assert "Mix" in mix(*parts, 2, SCALE).grad_fn.name()
    in_order = [x.detach().contiguous().requires_grad_() for x in parts]
    assert "Mix" not in mix(*in_order, 2, SCALE).grad_fn.name()
    with dense_products():
        assert "Mix" not in mix(*parts, 2, SCALE).grad_fn.name()
    halves = [x.detach().half() for x in parts]
    assert torch.equal(mix(*halves, 2, SCALE), mix_twin(*halves, 2, SCALE))


def test_numbers_that_are_no_spikes_are_multiplied():
    parts = [(x.detach() * (i + 1.5)).requires_grad_() for i, x in enumerate(triple((2, 2, 9), 2, 8))]
    for a, b in zip(run(mix, parts, 2), run(mix_twin, parts, 2), strict=True):
        assert torch.allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_values_that_are_not_finite_spread_as_in_torch(which, value):
    parts = [x.detach().clone(memory_format=torch.preserve_format) for x in triple((1, 2, 6), 2, 4)]
    parts[which][0, 1, 3, 2] = value
    ours, theirs = (f(*parts, 2, SCALE) for f in (mix, mix_twin))
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_gradients_that_are_not_finite_spread_as_in_torch():
    parts = triple((1, 2, 6), 2, 4)

    def spoiled(function):
        out = function(*parts, 2, SCALE)
        grad = torch.ones_like(out)
        grad[0, 0, 1, 1] = float("inf")
        return torch.autograd.grad(out, parts, grad)

    for a, b in zip(spoiled(mix), spoiled(mix_twin), strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())
        assert not b.isfinite().all()


def test_spikes_are_kept_as_bits_with_the_same_gradients():
    parts = triple((4, 8, 64), 3, 16, dtype=torch.float32)
    plain, kept = run(mix, parts, 3), []
    with spikes_as_bits(parts[0]):
        out = mix(*parts, 3, SCALE)
        kept = [x.dtype for x in out.grad_fn.saved_tensors]
        grads = run(mix, parts, 3)
    assert kept == [torch.int64] * 3
    assert all(torch.equal(a, b) for a, b in zip(plain, grads, strict=True))


def test_bits_do_not_depend_on_the_number_of_threads(with_threads):
    parts = triple((3, 5, 33), 3, 16, dtype=torch.float32)
    results = with_threads(lambda: run(mix, parts, 3))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_additions_are_those_of_the_spikes_of_query_and_key():
    told = []
    q, k, v = (x.detach() for x in triple((2, 2, 6), 2, 4))
    with additions_told(told.append):
        mix(q, k, v, 2, SCALE)
    assert sorted(told) == sorted(4 * int(x.sum()) for x in (q, k))


@pytest.mark.slow
def test_a_compiled_graph_has_the_same_gradients():
    parts = triple((2, 2, 9), 2, 8)
    compiled = torch.compile(mix, fullgraph=True)
    for a, b in zip(run(compiled, parts, 2), run(mix, parts, 2), strict=True):
        assert torch.equal(a, b)
