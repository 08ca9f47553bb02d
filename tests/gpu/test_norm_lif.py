"""BatchNorm and LIF in one in Triton: spikes of the twin in float64 by counting, and given statistics to the bit."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sage_snn.kernels import switched_off
from sage_snn.kernels.calls import SHAPE_CODES
from sage_snn.kernels.lif import Membrane, lif_twin
from sage_snn.kernels.membrane import UNWATCHED, Watch
from sage_snn.kernels.norm_lif import norm_lif, norm_lif_twin

MEMBRANES = st.builds(
    Membrane,
    tau=st.sampled_from([2.0, 1.3]),
    threshold=st.sampled_from([1.0, 0.3]),
    reset=st.sampled_from([0.0, -0.2, None]),
    decay_input=st.booleans(),
    detach_reset=st.booleans(),
)
TOLERANCES = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SIZES = st.tuples(st.integers(1, 3), st.sampled_from([1, 3, 16, 48]), st.sampled_from([(1,), (5,), (3, 4), (67,)]))
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["positions last", "channels last"])


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def problem(times, batch, channels, length, dtype, last, residual):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(times * batch, channels, *length, generator=generator) * 1.7 + 0.6).to(dtype)
    more = torch.randn(x.shape, generator=generator).to(dtype)
    weight, bias = torch.rand(2, channels, generator=generator) + 0.5
    mean, var = torch.rand(2, channels, generator=generator) + 0.5
    inputs = {"x": channels_last(x) if last else x, "weight": weight, "bias": bias, "residual": more}
    return inputs | ({} if residual else {"residual": None}), (mean, var)


def run(function, inputs, statistics, slope, membrane, times, training, shape="Sigmoid", **options):
    """Spikes, running statistics and all gradients."""
    leaves = {name: t if t is None else t.detach().clone().requires_grad_() for name, t in inputs.items()}
    mean, var = (t.clone() for t in statistics)
    slope = slope.clone().requires_grad_(slope.ndim < 4)
    options |= {"training": training, "momentum": 0.3, "eps": 1e-5, "shape": shape}
    spikes = function(
        **leaves, running_mean=mean, running_var=var, slope=slope, membrane=membrane, times=times, **options
    )
    weights = torch.cos(torch.arange(spikes.numel(), dtype=torch.float32)).view_as(spikes).half()
    (spikes * weights.to(spikes.dtype)).sum().backward()
    grads = [t.grad for t in leaves.values() if t is not None]
    return [spikes.detach(), mean, var, *grads, *([slope.grad] if slope.requires_grad else [])]


def assert_same_but_for_rounding(ours, exact, tolerance):
    """A membrane at the threshold may round to either side: at most one of so few."""
    differ = ours[0].double() != exact[0]
    assert differ.sum() <= 1
    if not differ.any():
        for a, b in zip(ours[1:], exact[1:], strict=True):
            assert torch.allclose(
                a.double(), b.double(), rtol=tolerance, atol=tolerance * (1e-3 + b.abs().max().item())
            )


def in_float64(inputs):
    return {name: t if t is None else t.double() for name, t in inputs.items()}


@given(
    MEMBRANES,
    st.sampled_from([1, 2, 4, 7, 12]),
    SIZES,
    st.sampled_from(list(SHAPE_CODES)),
    st.sampled_from(list(TOLERANCES)),
    *[st.booleans()] * 4,
)
@example(Membrane(), 4, (2, 1, (1100,)), "Sigmoid", torch.float32, True, True, False, True)  # two programs add up
def test_kernel_equals_its_twin_in_float64(
    membrane, times, sizes, shape, dtype, training, last, residual, slope_per_step
):
    batch, channels, length = sizes
    if times * batch * len(torch.zeros(length).flatten()) == 1:
        return
    inputs, statistics = problem(times, batch, channels, length, dtype, last, residual)
    slope = torch.linspace(2, 5, times, dtype=torch.float64) if slope_per_step else torch.tensor(3.3).double()
    ours = run(norm_lif, inputs, statistics, slope, membrane, times, training, shape)
    exact = run(
        *(norm_lif_twin, in_float64(inputs), [t.double() for t in statistics], slope, membrane, times, training, shape)
    )
    assert ours[0].dtype == ours[3].dtype == dtype
    assert ours[0].stride() == ours[3].stride() == inputs["x"].stride()
    assert_same_but_for_rounding(ours, exact, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@both_layouts
def test_given_statistics_give_the_spikes_of_the_same_roundings_to_the_bit(last, dtype):
    inputs, (mean, var) = problem(4, 2, 5, (33,), dtype, last, residual=True)
    membrane, slope = Membrane(1.3), torch.tensor(4.0)
    ours = norm_lif(
        **inputs, running_mean=mean, running_var=var, slope=slope, membrane=membrane, times=4, training=False
    )
    gain = inputs["weight"] * (1 / (var + 1e-5).sqrt())
    normal = (inputs["x"].float() - mean.view(1, -1, 1)) * gain.view(1, -1, 1) + inputs["bias"].view(1, -1, 1)
    currents = (normal + inputs["residual"].float()).unflatten(0, (4, -1))
    spikes = lif_twin(currents, torch.zeros_like(currents[0]), slope, membrane, "Sigmoid", UNWATCHED)[0]
    assert 0.02 < ours.float().mean() < 0.9
    assert torch.equal(ours.float(), spikes.flatten(0, 1))


@pytest.mark.parametrize("pattern", [(1, 1, 6, 1), (3, 2, 1, 10), (1, 2, 6, 10), (3, 2, 6, 1)], ids=str)
@both_layouts
def test_slopes_of_neurons_equal_those_of_the_twin(pattern, last):
    inputs, statistics = problem(3, 2, 6, (2, 5), torch.float32, last, residual=False)
    slope = torch.rand(pattern, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3 + 2
    ours = run(norm_lif, inputs, statistics, slope, Membrane(), 3, training=True)
    exact = run(
        norm_lif_twin, in_float64(inputs), [t.double() for t in statistics], slope, Membrane(), 3, training=True
    )
    assert_same_but_for_rounding(ours, exact, 2e-4)


@both_layouts
@pytest.mark.parametrize("reset", [0.0, None])
@pytest.mark.parametrize("times", [4, 12])
def test_tensors_for_constants_moments_and_sums_equal_those_of_the_twin(last, reset, times):
    inputs, statistics = problem(times, 2, 5, (7,), torch.float32, last, residual=True)
    found = []
    for twin in (False, True):
        threshold = torch.linspace(0.4, 0.9, times, dtype=torch.float64, requires_grad=True)
        tau = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
        gains, seen = torch.zeros(2, dtype=torch.float64, requires_grad=True), []
        own = in_float64(inputs) if twin else inputs
        options = {"watch": Watch(seen.append, gradients=gains)}
        function = norm_lif_twin if twin else norm_lif
        used = [t.double() for t in statistics] if twin else statistics
        results = run(function, own, used, torch.tensor(3.0), Membrane(tau, threshold, reset), times, True, **options)
        found.append([*results, *seen, threshold.grad, tau.grad, gains.grad])
    assert_same_but_for_rounding(*found, 2e-4)
    assert torch.equal(found[0][0].double(), found[1][0])


@pytest.mark.parametrize("offset", [0.0, 1000.0, -3e4])
@both_layouts
def test_moments_survive_a_large_mean(offset, last):
    x = torch.randn(8, 3, 150, generator=torch.Generator().manual_seed(0)) + offset
    x, mean, var = channels_last(x) if last else x, torch.zeros(3), torch.zeros(3)
    norm_lif(x, None, None, mean, var, torch.tensor(4.0), Membrane(), 4, training=True, momentum=1.0)
    exact = x.double().transpose(0, 1).flatten(1)
    assert torch.allclose(mean.double(), exact.mean(1), rtol=1e-6, atol=1e-6)
    assert torch.allclose(var.double(), exact.var(1), rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter
@both_layouts
def test_large_and_denormal_values(last):
    x = torch.tensor([1e30, -1e30, 1e-40, 0.5, 3e-45, -2.0]).expand(4, 2, 6).clone()
    x = channels_last(x) if last else x
    options = {"slope": torch.tensor(4.0), "membrane": Membrane(), "times": 2, "training": False}
    mean, var = torch.zeros(2), torch.ones(2)
    ours = norm_lif(x, None, None, mean, var, **options)
    with switched_off():
        assert torch.equal(ours, norm_lif(x, None, None, mean, var, **options))


def test_float64_and_nothing_at_all_run_in_the_twin(monkeypatch):
    monkeypatch.setattr("sage_snn.kernels.gpu.norm_lif.launch", lambda *_, **__: pytest.fail("a kernel was launched"))
    options = {"slope": torch.tensor(4.0), "membrane": Membrane(), "times": 2, "training": True}
    assert norm_lif(torch.randn(4, 3, 5).double(), *[None] * 4, **options).dtype == torch.float64
    assert norm_lif(torch.zeros(0, 3, 5), *[None] * 4, **options | {"training": False}).shape == (0, 3, 5)


def test_mistakes_are_named():
    options = {"slope": torch.tensor(4.0), "membrane": Membrane(), "times": 3, "training": True}
    with pytest.raises(ValueError, match="4 images do not divide into 3 time steps"):
        norm_lif(torch.randn(4, 3, 5), *[None] * 4, **options)


@both_layouts
def test_bits_do_not_depend_on_the_order_of_programs(in_any_order, last):
    inputs, statistics = problem(2, 2, 40, (40,), torch.float32, last, residual=True)

    def compute():
        seen, gains = [], torch.zeros(2, dtype=torch.float64, requires_grad=True)
        options = {"watch": Watch(seen.append, gradients=gains)}
        found = run(norm_lif, inputs, statistics, torch.tensor(3.0), Membrane(), 2, True, **options)
        return [*found, *seen, gains.grad]

    found = in_any_order(compute)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
