import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_snn.kernels import attention
from sage_snn.signals import (
    SPREADS,
    Constant,
    HeadEntropy,
    HeadGini,
    HeadStatistics,
    Random,
    entropy_dispersion,
    gini_dispersion,
    head_entropy,
    head_gini,
    population_std,
    sample_std,
)

SPIKE_TYPES = [torch.float32, torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float64]


def spikes(*shape, rate=0.2, dtype=torch.float32, seed=0):
    """Spikes whose rate differs from head to head, so that the heads disagree."""
    generator = torch.Generator().manual_seed(seed)
    rates = torch.linspace(0.5, 1.5, shape[2]).view(-1, 1, 1) * rate
    return (torch.rand(shape, generator=generator) < rates).to(dtype)


def pair(*shape, **options):
    return spikes(*shape, **options, seed=1), spikes(*shape, **options, seed=2)


def probabilities(q, k, scale=0.125, temperature=0.25, whole_map=False):
    scores = scale * q.double() @ k.double().transpose(-1, -2) / temperature
    return torch.softmax(scores.flatten(-2) if whole_map else scores, dim=-1)


def reference_entropy(*args, **options):
    p = probabilities(*args, **options)
    entropies = torch.special.entr(p).sum(-1) / math.log(p.shape[-1])
    return entropies.transpose(2, -1).flatten(0, -2).mean(0) if entropies.ndim == 4 else entropies.mean((0, 1))


def with_scores(rows):
    """q, k of one image and head whose scores at scale 1 and temperature 1 are the given (N, N) rows."""
    scores = torch.tensor(rows, dtype=torch.float64)
    return scores[None, None, None], torch.eye(len(rows), dtype=torch.float64)[None, None, None]


def log_probabilities(*p):
    return [math.log(x) if x else -800.0 for x in p]


@pytest.mark.parametrize(
    ("p", "entropy", "gini"),
    [
        ((0.5, 0.5, 0, 0), 0.5, 0.5),
        ((0.25, 0.25, 0.25, 0.25), 1.0, 0.75),
        ((1, 0, 0, 0), 0.0, 0.0),
        ((0.5, 0.25, 0.25, 0), 0.75, 0.625),
    ],
    ids=str,
)
def test_entropy_and_gini_give_the_numbers_worked_out_by_hand(p, entropy, gini):
    q, k = with_scores([log_probabilities(*p)] * 4)
    assert head_entropy(q, k, scale=1, temperature=1).item() == pytest.approx(entropy, abs=1e-12)
    assert head_gini(q, k, scale=1, temperature=1).item() == pytest.approx(gini, abs=1e-12)


def test_entropy_is_the_mean_over_query_rows():
    q, k = with_scores([log_probabilities(0.5, 0.5, 0, 0)] * 3 + [log_probabilities(1, 0, 0, 0)])
    assert head_entropy(q, k, scale=1, temperature=1).item() == pytest.approx(0.375, abs=1e-12)


def test_temperature_and_scale_divide_and_multiply_the_scores():
    # Two tokens, scores 0 and 1: p = s(scale / temperature).
    q, k = with_scores([[0.0, 1.0], [1.0, 0.0]])
    p = 1 / (1 + math.exp(-0.125 / 0.25))
    expected = -(p * math.log2(p) + (1 - p) * math.log2(1 - p))
    assert head_entropy(q, k).item() == pytest.approx(expected, abs=1e-12)


def test_dispersion_of_a_certain_and_an_uncertain_head_is_half():
    certain, k = with_scores([log_probabilities(1, 0, 0, 0)] * 4)
    q = torch.cat([certain, torch.zeros_like(certain)], dim=2)
    k = torch.cat([k, k], dim=2)
    assert entropy_dispersion(q, k, scale=1, temperature=1).item() == pytest.approx(0.5, abs=1e-12)
    assert gini_dispersion(q, k, scale=1, temperature=1).item() == pytest.approx(0.375, abs=1e-12)


@pytest.mark.parametrize("dtype", SPIKE_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 3, 12, 64, 32), (2, 2, 3, 197, 64), (1, 5, 2, 2, 8)], ids=str)
def test_entropy_of_spikes_agrees_with_float64(shape, dtype):
    q, k = pair(*shape, dtype=dtype)
    values = head_entropy(q, k)
    assert values.dtype == torch.float64
    assert (values - reference_entropy(q, k)).abs().max() < 3e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0, 2.0])
def test_entropy_of_dense_values_agrees_with_float64(dtype, temperature):
    q, k = torch.randn(2, 3, 2, 4, 49, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = reference_entropy(q, k, temperature=temperature)
    assert (head_entropy(q, k, temperature=temperature) - expected).abs().max() < 3e-7


@pytest.mark.parametrize("dtype", SPIKE_TYPES, ids=str)
def test_gini_agrees_with_float64(dtype):
    q, k = pair(3, 2, 4, 49, 16, dtype=dtype)
    expected = (1 - probabilities(q, k).square().sum(-1)).mean((0, 1, 3))
    assert (head_gini(q, k) - expected).abs().max() < 3e-7


def test_entropy_over_the_whole_map_agrees_with_float64():
    q, k = pair(3, 2, 4, 49, 16)
    expected = reference_entropy(q, k, whole_map=True)
    assert (HeadEntropy(over="map")(q, k, 0.125) - expected).abs().max() < 3e-7


def test_entropy_over_the_whole_map_of_equal_rows_is_worked_out_by_hand():
    q, k = with_scores([log_probabilities(0.5, 0.5, 0, 0)] * 4)  # 8 cells of 1/8: log 8 / log 16
    assert HeadEntropy(temperature=1, over="map")(q, k, 1.0).item() == pytest.approx(0.75, abs=1e-12)


@pytest.mark.parametrize("signal", [HeadEntropy(), HeadEntropy(over="map"), HeadGini()], ids=str)
def test_one_token_is_certain(signal):
    q, k = pair(2, 3, 4, 1, 8)
    assert signal(q, k, 0.125).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("signal", [HeadEntropy(), HeadEntropy(over="map"), HeadGini()], ids=str)
@pytest.mark.parametrize("entries", [1, 100, 700, 4000])
def test_slicing_changes_nothing(monkeypatch, signal, entries):
    q, k = (
        0.5 * x for x in pair(2, 3, 4, 17, 8)
    )  # no spikes: one row of the four heads has 68 entries, one image 1156
    whole = signal(q, k, 0.125)
    monkeypatch.setattr(attention, "SLICE", entries)
    slices = attention._scores
    counted = []
    monkeypatch.setattr(attention, "_scores", lambda *args: (counted.append(part) or part for part in slices(*args)))
    assert torch.allclose(signal(q, k, 0.125), whole, rtol=0, atol=1e-14)
    assert len(counted) > 1


def test_permuting_heads_permutes_values_and_keeps_the_dispersion():
    q, k = pair(2, 3, 6, 16, 8)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.allclose(head_entropy(q[:, :, order], k[:, :, order]), head_entropy(q, k)[order], rtol=0, atol=1e-14)
    assert entropy_dispersion(q[:, :, order], k[:, :, order]).item() == pytest.approx(
        entropy_dispersion(q, k).item(), abs=1e-14
    )


@pytest.mark.parametrize("constant", [1.0, 64.0, -64.0])
def test_constant_added_to_the_scores_of_a_row_changes_nothing(constant):
    q, k = pair(2, 3, 4, 16, 8)
    rows = torch.linspace(-1, 1, 16).view(16, 1).expand(2, 3, 4, 16, 1) * constant
    shifted = head_entropy(torch.cat([q, rows], -1), torch.cat([k, torch.ones_like(rows)], -1))
    tolerance = 1e-7 * (1 + abs(constant))  # the scores themselves are rounded to float32
    assert torch.allclose(shifted, head_entropy(q, k), rtol=0, atol=tolerance)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32),
    st.tuples(*(st.integers(1, n) for n in (3, 3, 4, 9, 6))),
    st.sampled_from([0.05, 0.25, 1.0, 30.0]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0, None]),
)
def test_entropy_lies_between_zero_and_one(seed, shape, temperature, rate):
    generator = torch.Generator().manual_seed(seed)
    q, k = (
        torch.randn(2, *shape, generator=generator) * 5
        if rate is None
        else torch.rand(2, *shape, generator=generator) < rate
    )
    for over in ("keys", "map"):
        values = HeadEntropy(temperature, over)(q, k, 0.125)
        assert ((values >= 0) & (values <= 1)).all()
    gini = head_gini(q, k, temperature=temperature)
    assert ((gini >= 0) & (gini <= 1 - 1 / shape[3] + 1e-7)).all()


def test_images_option_reads_the_first_images_only():
    q, k = pair(2, 5, 3, 16, 8)
    for signal, sample in [(HeadEntropy(), HeadEntropy(images=2)), (HeadGini(), HeadGini(images=2))]:
        assert torch.equal(sample(q, k, 0.125), signal(q[:, :2], k[:, :2], 0.125))


@pytest.mark.parametrize("size", [1.0, 0.5], ids=["spikes", "other values"])
def test_layout_in_memory_changes_nothing(size):
    q, k = (size * x for x in pair(2, 3, 4, 16, 8))
    views = (x.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0) for x in (q, k))
    assert torch.allclose(head_entropy(*views), head_entropy(q, k), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [1.0, 0.3], ids=["spikes", "other values"])
def test_autocast_changes_nothing(size):
    q, k = (size * x for x in pair(2, 3, 4, 64, 32))
    plain = head_entropy(q, k), head_gini(q, k)
    with torch.autocast("cpu", torch.bfloat16):
        inside = head_entropy(q, k), head_gini(q, k)
    assert torch.equal(torch.stack(inside), torch.stack(plain))


@pytest.mark.parametrize("function", [head_entropy, head_gini, entropy_dispersion, gini_dispersion])
def test_signals_carry_no_gradient_and_leave_their_input_alone(function):
    q, k = (x.requires_grad_() for x in pair(2, 3, 4, 16, 8))
    before = q.detach().clone(), k.detach().clone()
    assert not function(q, k).requires_grad
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


MEASURE = """
import resource, sys, torch
from sage_snn.signals import HeadEntropy
signal, shape = HeadEntropy(), tuple(map(int, sys.argv[1].split("x")))
small = torch.zeros(1, 1, *shape[2:])
signal(small, small, 0.125)  # threads, libraries and code are not what is measured
q, k = torch.zeros(shape).bernoulli_(0.2), torch.zeros(shape).bernoulli_(0.2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
signal(q, k, 0.125)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("shape", ["4x128x12x64x32", "4x32x12x196x32", "4x512x12x16x64"])
def test_extra_memory_stays_within_64_megabytes(shape, kernels):
    command, chosen = [sys.executable, "-c", MEASURE, shape], os.environ | {"SAGE_SNN_KERNELS": kernels}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=chosen)
    assert float(output.stdout) < 64


@pytest.mark.parametrize("function", [head_entropy, head_gini, entropy_dispersion, gini_dispersion])
def test_wrong_shapes_are_refused_with_the_right_one(function):
    q, k = pair(2, 3, 4, 16, 8)
    for bad in [(q[0], k[0]), (q, k[:, :, :2]), (q, k[..., :4])]:
        with pytest.raises(ValueError, match=r"must both have the shape \(T, B, H, N, K\)"):
            function(*bad)


@pytest.mark.parametrize("signal", [HeadEntropy(), HeadEntropy(over="map"), HeadGini(), HeadStatistics((0.5, 1.0))])
def test_signals_take_more_keys_than_queries_and_refuse_other_heads(signal):
    q, k = pair(2, 3, 4, 16, 8)
    whole = signal(q, k, 0.125)
    halves = torch.stack([signal(q[..., :8, :], k, 0.125), signal(q[..., 8:, :], k, 0.125)])
    if getattr(signal, "over", "keys") == "keys":  # rows do not see each other
        assert halves.mean(0).tolist() == pytest.approx(whole.tolist(), abs=1e-6)
    assert signal(q[..., :1, :], k, 0.125).isfinite().all()
    with pytest.raises(ValueError, match=r"must both have the shape \(T, B, H, N, K\), not .*; only N may differ"):
        signal(q[:, :, :2], k, 0.125)


def test_entropy_is_over_the_keys_however_many_queries_there_are():
    # One query row of ones against keys (1, 1, 0, 0): scores K, K, 0, 0; at a high scale p = (1/2, 1/2, 0, 0).
    q = torch.ones(1, 1, 1, 1, 8)
    k = torch.tensor([1.0, 1.0, 0.0, 0.0]).view(1, 1, 1, 4, 1).expand(1, 1, 1, 4, 8)
    assert head_entropy(q, k, scale=100.0).item() == pytest.approx(0.5)
    assert head_gini(q, k, scale=100.0).item() == pytest.approx(0.5)
    assert head_entropy(k, q, scale=100.0).item() == 0.0  # one key: nothing to choose


@pytest.mark.parametrize("function", [head_entropy, head_gini, entropy_dispersion, gini_dispersion])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_with_their_head(function, bad):
    q, k = pair(2, 3, 4, 16, 8)
    k[1, 2, 3] = 1.0
    q[1, 2, 3, 5, 0] = bad
    with pytest.raises(ValueError, match=r"non-finite scores in heads \[3\].*sage_snn\.check"):
        function(q, k)


def test_empty_batch_is_refused():
    with pytest.raises(ValueError, match="the batch is empty"):
        head_entropy(torch.zeros(4, 0, 2, 8, 8), torch.zeros(4, 0, 2, 8, 8))


@pytest.mark.parametrize("signal", [HeadEntropy, HeadGini])
@pytest.mark.parametrize("temperature", [0.0, -0.25, math.nan])
def test_temperature_must_be_positive(signal, temperature):
    with pytest.raises(ValueError, match="temperature must be positive"):
        signal(temperature)


def test_random_control_follows_its_seed_and_not_the_network():
    q, k = pair(2, 3, 4, 16, 8)
    state = torch.get_rng_state()
    a, b = Random(seed=3), Random(seed=3)
    values = a(q, k, 0.125)
    assert torch.equal(values, b(torch.zeros_like(q), k, 1.0))
    assert values.shape == (4,)
    assert ((values >= 0) & (values < 1)).all()
    assert not torch.equal(values, Random(seed=4)(q, k, 0.125))
    assert torch.equal(torch.get_rng_state(), state)


def test_random_control_resumes_from_its_state_dict():
    q, k = pair(2, 3, 4, 16, 8)
    signal, resumed = Random(seed=1), Random(seed=9)
    signal(q, k, 0.125)
    resumed.load_state_dict(signal.state_dict())
    assert all(torch.equal(signal(q, k, 0.125), resumed(q, k, 0.125)) for _ in range(3))


def test_constant_control_has_no_spread():
    values = Constant(0.7)(*pair(2, 3, 4, 16, 8), 0.125)
    assert values.tolist() == [0.7] * 4
    assert values.dtype == torch.float64
    assert population_std(values).item() == pytest.approx(0, abs=1e-15)


def test_spreads_give_the_numbers_worked_out_by_hand():
    values = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert {name: spread(values).item() for name, spread in SPREADS.items()} == pytest.approx(
        {"std": 1.0, "sample_std": math.sqrt(2), "mean": 2.0}
    )


def test_one_head_has_population_spread_zero_and_no_sample_spread():
    one = torch.tensor([0.4], dtype=torch.float64)
    assert population_std(one).item() == 0
    with pytest.raises(ValueError, match="use spread='std'"):
        sample_std(one)


def test_a_misspelt_axis_is_refused():
    with pytest.raises(ValueError, match="over must be 'keys' or 'map'"):
        HeadEntropy(over="rows")
