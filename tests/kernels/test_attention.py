import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.kernels import attention
from sage_snn.kernels.bits import pack_bits, spikes_as_bits, unpack_bits


def pair(*shape, rate=0.3, seed=0, dtype=torch.float32, layout="TBNC"):
    """q and k (T, B, H, N, K), lying in memory as models have them."""
    times, batch, heads, tokens, width = shape
    spikes = torch.rand(2, times, batch, tokens, heads, width, generator=torch.Generator().manual_seed(seed)) < rate
    if layout == "TBCN":
        return (x.permute(0, 1, 3, 4, 2).contiguous().transpose(-1, -2) for x in spikes.to(dtype))
    return (x.transpose(2, 3) for x in spikes.to(dtype))


def references(q, k, scale, temperature):
    q, k = q.double(), k.double()
    return attention.entropy_twin(q, k, scale, temperature), attention.gini_twin(q, k, scale, temperature)


@settings(deadline=None, max_examples=120)
@given(
    st.tuples(*(st.integers(1, n) for n in (2, 2, 3))),
    st.integers(1, 140),
    st.sampled_from([1, 7, 8, 16, 32, 33, 64, 65, 130]),
    st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]),
    st.sampled_from([0.125, -0.125, 0.0, 1.0]),
    st.sampled_from(["TBNC", "TBCN"]),
    st.sampled_from(
        [torch.float32, torch.float64, torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.int64]
    ),
)
def test_counted_statistics_equal_the_float64_map(shape, tokens, width, rate, scale, layout, dtype):
    q, k = pair(*shape, tokens, width, rate=rate, dtype=dtype, layout=layout)
    temperatures = [0.25, 1.0, 3.0]
    entropy, gini = attention.attention_statistics(q, k, scale, temperatures)
    assert entropy.shape == gini.shape == (3, shape[2])
    for i, temperature in enumerate(temperatures):
        expected = references(q, k, scale, temperature)
        assert torch.allclose(entropy[i], expected[0], rtol=0, atol=1e-12)
        assert torch.allclose(gini[i], expected[1], rtol=0, atol=1e-12)
        assert torch.equal(attention.entropy(q, k, scale, temperature, False), entropy[i])
        assert torch.equal(attention.gini(q, k, scale, temperature), gini[i])


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(*(st.integers(1, n) for n in (2, 2, 3))),
    st.integers(1, 140),
    st.sampled_from([1, 8, 33, 65]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([0.125, -0.125, 1.0]),
    st.sampled_from(["TBNC", "TBCN"]),
)
def test_the_entropy_of_rows_equals_the_float64_map_and_its_mean_is_that_of_the_head(
    shape, tokens, width, rate, scale, layout
):
    q, k = pair(*shape, tokens, width, rate=rate, layout=layout)
    rows = attention.row_entropy(q, k, scale, 0.25)
    assert rows.shape == (*shape, tokens)
    assert torch.allclose(rows, attention.row_entropy_twin(q.double(), k.double(), scale, 0.25), rtol=0, atol=1e-12)
    heads = attention.entropy(q, k, scale, 0.25, False)
    assert torch.allclose(rows.mean((0, 1, 3)), heads, rtol=0, atol=1e-12)


def test_the_entropy_of_rows_is_that_of_a_loop_over_rows(monkeypatch):
    monkeypatch.setattr(attention, "SLICE", 50)  # several slices, of images and of rows
    q, k = (torch.rand(2, 3, 2, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    k = k[:, :, :, :5]  # keys of a coarser map
    rows = attention.row_entropy(q, k, 0.5, 0.25)
    for t, b, h, n in torch.cartesian_prod(*map(torch.arange, q.shape[:4])).tolist():
        p = torch.softmax(0.5 * k[t, b, h] @ q[t, b, h, n] / 0.25, 0)
        assert float(rows[t, b, h, n]) == pytest.approx(float(-(p * p.log()).sum()) / math.log(5), abs=1e-12)
    assert attention.row_entropy(q, k[:, :, :, :1], 0.5, 0.25).abs().max() == 0


@pytest.mark.parametrize("scale", [50.0, -50.0, 1e6, 1e-300])
def test_any_scale_is_stable(scale):
    q, k = pair(2, 2, 3, 50, 32)
    entropy, gini = (t[0] for t in attention.attention_statistics(q, k, scale, [0.25]))
    expected = references(q, k, scale, 0.25)
    assert torch.allclose(entropy, expected[0], rtol=0, atol=3e-7)
    assert torch.allclose(gini, expected[1], rtol=0, atol=3e-7)


def test_spikes_are_counted_and_anything_else_is_not():
    q, k = pair(2, 2, 3, 70, 32)
    assert attention._counted(q, k, [0.5]) is not None
    for value in (0.5, -1.0, 2.0, -0.0, 1e-45, math.nan, math.inf, 1.0000001):
        odd = q.clone()
        odd[1, 1, 2, 69, 31] = value
        assert attention._counted(odd, k, [0.5]) is None
        assert attention._counted(k, odd, [0.5]) is None
        if math.isfinite(value):
            found = attention.entropy(odd, k, 0.125, 0.25, False)
            assert torch.allclose(found, references(odd, k, 0.125, 0.25)[0], rtol=0, atol=3e-7)


def test_strides_of_every_kind():
    q, k = pair(2, 3, 4, 20, 6)
    expected = attention.entropy(q, k, 0.125, 0.25, False)
    turned = [x.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0) for x in (q, k)]
    spread = [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in (q, k)]
    for a, b in (turned, spread, (turned[0], spread[1])):
        assert torch.equal(attention.entropy(a, b, 0.125, 0.25, False), expected)
    same = torch.ones(1, 1, 1, 1, 1).expand(2, 3, 4, 20, 6)
    assert attention.entropy(same, same, 0.125, 0.25, False).tolist() == pytest.approx([1.0] * 4)


def test_bits_do_not_depend_on_the_number_of_threads(with_threads):
    q, k = pair(3, 5, 3, 70, 20)
    for compute in (
        lambda: torch.stack(attention.attention_statistics(q, k, 0.125, [0.25, 0.1])),
        lambda: attention.row_entropy(q, k, 0.125, 0.25),
    ):
        found = with_threads(compute)
        assert all(torch.equal(found[0], other) for other in found[1:])


def test_whole_map_and_off_run_the_twin(off):
    q, k = pair(2, 2, 3, 16, 8)
    assert attention._counted(q, k, [0.5]) is None
    assert torch.equal(attention.entropy(q, k, 0.125, 0.25, True), attention.entropy_twin(q, k, 0.125, 0.25, True))
    assert attention.attention_statistics(q, k, 0.125, [0.25])[0].shape == (1, 3)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.sampled_from([torch.float32, torch.float64, torch.bool]))
def test_packed_bits_come_back(shape, dtype):
    spikes = (torch.rand(shape) < 0.4).to(dtype)
    packed = pack_bits(spikes)
    assert len(packed) == math.ceil(spikes.numel() / 64)
    assert torch.equal(unpack_bits(packed, tuple(shape), dtype), spikes)
    assert torch.equal(unpack_bits(packed, tuple(shape), torch.float16), spikes.to(torch.float16))


def test_only_spikes_are_packed():
    assert pack_bits(torch.tensor([0.0, 1.0, 0.5])) is None


def test_spikes_kept_for_backward_come_back_as_they_lay():
    leaf = (torch.rand(4, 40, 8, 8) < 0.3).float().contiguous(memory_format=torch.channels_last).requires_grad_()
    with spikes_as_bits(leaf):
        spikes = leaf * 1
        squares = spikes * spikes
    kept = squares.grad_fn._saved_self
    assert kept.data_ptr() != spikes.data_ptr()
    assert kept.stride() == spikes.stride()
    assert torch.equal(kept, spikes)


def test_packing_is_the_same_without_kernels(off):
    spikes = (torch.rand(3, 71) < 0.4).float()
    packed = pack_bits(spikes)
    assert torch.equal(unpack_bits(packed, (3, 71)), spikes)
    assert pack_bits(spikes * 2) is None


@pytest.mark.parametrize("changed", [False, True])
def test_a_change_in_place_between_the_passes_is_noticed(changed):
    weight, x = torch.rand(8192, requires_grad=True), torch.rand(8192, requires_grad=True)
    with spikes_as_bits(x):
        loss = (weight * x).sum()
    if not changed:
        loss.backward()
        assert torch.equal(x.grad, weight.detach())
        return
    with torch.no_grad():
        weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("size", [100, 8192], ids=["too small to pack", "no spikes"])
def test_a_pass_without_backward_keeps_nothing_alive(size):
    x = torch.rand(size, requires_grad=True)
    with spikes_as_bits(x):
        y = x.exp()
    kept = weakref.ref(y)
    del y
    assert kept() is None


def test_torch_accepts_the_operators_also_where_the_twin_runs():
    operators, tests = torch.ops.sage_snn, ("test_schema", "test_faketensor")
    for q, k in (pair(2, 1, 3, 5, 4), (torch.randn(2, 1, 3, 5, 4), torch.randn(2, 1, 3, 7, 4))):
        torch.library.opcheck(operators.entropy.default, (q, k, 0.125, 0.5, False), test_utils=tests)
        torch.library.opcheck(operators.row_entropy.default, (q, k, 0.125, 0.5), test_utils=tests)
        torch.library.opcheck(operators.gini.default, (q, k, 0.125, 0.5), test_utils=tests)
        torch.library.opcheck(operators.attention_statistics.default, (q, k, 0.125, [0.5, 1.0]), test_utils=tests)
