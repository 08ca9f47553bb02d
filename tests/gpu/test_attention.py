import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import interpreter_builder

from sage_snn.kernels import attention, path
from sage_snn.kernels.gpu import attention as kernels

HALF = [torch.float32, torch.float16, torch.bfloat16]


def pair(times, batch, heads, tokens, width, *, keys=None, rate=0.3, dtype=torch.float32, layout="TBNC"):
    """q (T, B, H, N, K) and k (T, B, H, M, K), lying in memory as models have them."""
    generator = torch.Generator().manual_seed(0)
    made = (torch.rand(times, batch, n, heads, width, generator=generator) for n in (tokens, keys or tokens))
    spikes = ((values < rate).to(dtype) for values in made)
    if layout == "TBCN":
        return [x.permute(0, 1, 3, 4, 2).contiguous().transpose(-1, -2) for x in spikes]
    return [x.transpose(2, 3) for x in spikes]


def same(found, expected):
    """Rows are in float32."""
    return found.dtype == torch.float64 and torch.allclose(found, expected, rtol=0, atol=5e-7, equal_nan=True)


def assert_like_the_twins(q, k, scale, temperatures):
    entropy, gini = attention.attention_statistics(q, k, scale, temperatures)
    for i, temperature in enumerate(temperatures):
        assert same(entropy[i], attention.entropy_twin(q.double(), k.double(), scale, temperature))
        assert same(gini[i], attention.gini_twin(q.double(), k.double(), scale, temperature))


@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    st.integers(1, 40),
    st.sampled_from([1, 7, 16, 33]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([0.125, -0.125, 0.0]),
    st.sampled_from(["TBNC", "TBCN"]),
    st.sampled_from(HALF),
)
def test_statistics_equal_the_float64_map(shape, tokens, width, rate, scale, layout, dtype):
    q, k = pair(*shape, tokens, width, rate=rate, dtype=dtype, layout=layout)
    assert path(q) == "Triton"
    assert kernels.takes(q, k)
    assert_like_the_twins(q, k, scale, [0.25])


@pytest.mark.parametrize("dtype", HALF)
def test_several_temperatures_and_tiles_of_rows_keys_and_width(dtype):
    assert_like_the_twins(*pair(1, 1, 2, 70, 40, keys=131, dtype=dtype), 0.125, [0.25, 1.0])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("tokens", "keys"), [(35, 67), (3, 1)])
def test_rows_equal_those_of_the_float64_map(tokens, keys, dtype):
    q, k = pair(2, 1, 2, tokens, 8, keys=keys, dtype=dtype)
    rows = attention.row_entropy(q, k, 0.125, 0.25)
    assert rows.shape == (2, 1, 2, tokens)
    assert same(rows, attention.row_entropy_twin(q.double(), k.double(), 0.125, 0.25))


def test_two_rows_by_hand():
    q = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).view(1, 1, 1, 2, 2)
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 1, 1, 2, 2)
    scale = 0.25 * math.log(3)  # scores of log 3 and 0: p = [3/4, 1/4], then [1/2, 1/2]
    first = math.log2(4) - 0.75 * math.log2(3)
    assert attention.row_entropy(q, k, scale, 0.25).flatten().tolist() == pytest.approx([first, 1.0], abs=5e-7)
    assert float(attention.gini(q, k, scale, 0.25)) == pytest.approx((0.375 + 0.5) / 2, abs=5e-7)


@pytest.mark.parametrize("scale", [50.0, -50.0, 1e6])
def test_any_scale_is_stable(scale):
    assert_like_the_twins(*pair(1, 1, 1, 70, 8), scale, [0.25])


def test_values_other_than_spikes_are_an_ordinary_product():
    q, k = torch.randn(2, 1, 2, 2, 20, 12, generator=torch.Generator().manual_seed(0))
    assert_like_the_twins(q, k, 0.125, [0.25])


def test_one_nan_spoils_its_head_only():
    q, k = pair(1, 2, 2, 5, 4)
    q[0, 1, 1, 4, 3] = math.nan
    assert attention.entropy(q, k, 0.125, 0.25, False).isnan().tolist() == [False, True]


def test_strides_of_every_kind():
    q, k = pair(2, 1, 2, 9, 6)
    expected = attention.entropy(q, k, 0.125, 0.25, False)
    turned = [x.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0) for x in (q, k)]
    spread = [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in (q, k)]
    assert torch.equal(attention.entropy(turned[0], spread[1], 0.125, 0.25, False), expected)
    ones = torch.ones(1, 1, 1, 1, 1).expand(1, 1, 2, 9, 6)
    assert attention.entropy(ones, ones, 0.125, 0.25, False).tolist() == pytest.approx([1.0] * 2)


def test_sums_are_the_same_in_whatever_order_programs_run(monkeypatch):
    q, k = pair(2, 2, 2, 40, 6)
    expected = torch.stack(attention.attention_statistics(q, k, 0.125, [0.25]))
    set_place, ran = interpreter_builder.set_grid_idx, []

    def backwards(*place):
        ran.append([count - 1 - index for count, index in zip(interpreter_builder.grid_dim, place, strict=True)])
        set_place(*ran[-1])

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", backwards)
    assert torch.equal(torch.stack(attention.attention_statistics(q, k, 0.125, [0.25])), expected)
    assert ran[0] == [7, 1, 0]


def test_no_value_is_read_from_the_device(monkeypatch):
    def reads(*_):
        raise AssertionError("this would wait for a device")

    q, k = pair(1, 1, 2, 5, 4)
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "cpu"):
            patch.setattr(torch.Tensor, name, reads)
        entropy, _ = attention.attention_statistics(q, k, 0.125, [0.25, 1.0])
        rows = attention.row_entropy(q, k, 0.125, 0.25)
    assert torch.allclose(entropy[0], rows.mean((0, 1, 3)))


@pytest.mark.parametrize("odd", ["float64", "empty", "unlike", "whole map", "infinite"])
def test_what_the_kernel_does_not_take_goes_to_the_twin(odd, monkeypatch):
    q, k = pair(1, 0 if odd == "empty" else 2, 2, 5, 4, dtype=torch.float64 if odd == "float64" else torch.float32)
    k = k.half() if odd == "unlike" else k
    monkeypatch.setattr(kernels, "launch", None)
    whole, scale = odd == "whole map", math.inf if odd == "infinite" else 0.125
    found = attention.entropy(q, k, scale, 0.25, whole)
    assert torch.equal(found.isnan(), attention.entropy_twin(q, k, scale, 0.25, whole).isnan())


def test_a_pair_that_does_not_belong_together_is_refused():
    q, k = pair(1, 1, 2, 5, 4)
    with pytest.raises(ValueError, match="only N may differ"):
        attention.entropy(q, k[..., :3], 0.125, 0.25, False)
