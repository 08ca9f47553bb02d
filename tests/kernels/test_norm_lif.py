import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from membranes import MEMBRANES
from spikingjelly.activation_based import neuron, surrogate
from torch import nn

from sage_snn.kernels.calls import SHAPE_CODES
from sage_snn.kernels.lif import Membrane
from sage_snn.kernels.norm_lif import batch_norm_lif, norm_lif, norm_lif_twin
from sage_snn.layers import NormLIF
from sage_snn.neurons import LIFNode

with_and_without = pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["positions last", "channels last"])


def channels_last(x):
    """The same values, their channels last in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def problem(times, batch, channels, *length, dtype=torch.float64, seed=0, affine=True, last=False, residual=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(times * batch, channels, *length, generator=generator, dtype=dtype) * 1.7 + 0.6
    x = channels_last(x) if last else x
    weight, bias = (torch.rand(2, channels, generator=generator, dtype=dtype) + 0.5) if affine else (None, None)
    mean = torch.randn(channels, generator=generator, dtype=dtype)
    var = torch.rand(channels, generator=generator, dtype=dtype) + 0.5
    inputs = {"x": x, "weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
    more = torch.randn(x.shape, generator=generator, dtype=dtype)
    return inputs | ({"residual": channels_last(more) if last else more} if residual else {})


def run(function, inputs, slope, membrane, times, training=True, shape="Sigmoid"):
    """Spikes, running statistics and all gradients."""
    inputs = {name: None if t is None else t.clone() for name, t in inputs.items()}
    leaves = [t.requires_grad_() for name, t in inputs.items() if t is not None and "running" not in name]
    slope = slope.clone().requires_grad_()
    options = {"training": training, "momentum": 0.3, "eps": 1e-5, "shape": shape}
    spikes = function(**inputs, slope=slope, membrane=membrane, times=times, **options)
    (spikes * torch.cos(torch.arange(spikes.numel(), dtype=spikes.dtype)).view_as(spikes)).sum().backward()
    running = [inputs["running_mean"], inputs["running_var"]]
    return [spikes.detach(), *running, *(t.grad for t in leaves), slope.grad]


@settings(deadline=None, max_examples=120)
@given(
    MEMBRANES,
    st.sampled_from([1, 2, 4, 12]),
    st.tuples(st.integers(1, 4), st.integers(1, 5) | st.sampled_from([48, 64, 100, 128]), st.integers(1, 150)),
    st.sampled_from(list(SHAPE_CODES)),
    *[st.booleans()] * 5,
)
def test_kernel_equals_its_twin_in_float64(
    membrane, times, sizes, shape, training, affine, slope_per_step, last, residual
):
    batch, channels, length = sizes
    if times * batch * length == 1:
        return
    inputs = problem(times, batch, channels, length, affine=affine, last=last, residual=residual)
    slope = torch.linspace(2, 5, times, dtype=torch.float64) if slope_per_step else torch.tensor(3.3).double()
    ours, twin = (run(f, inputs, slope, membrane, times, training, shape) for f in (norm_lif, norm_lif_twin))
    assert torch.equal(ours[0], twin[0])
    assert ours[0].stride() == inputs["x"].stride()
    for a, b in zip(ours[1:], twin[1:], strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [(64,), (7, 7), (32, 32), (1,), (130,)], ids=str)
@pytest.mark.parametrize("training", [True, False])
@both_layouts
@with_and_without
def test_float32_spikes_are_those_of_float64_but_for_one_in_a_hundred_thousand(length, training, last, residual):
    membrane, slope = Membrane(detach_reset=True), torch.tensor(4.0)
    inputs = problem(4, 8, 24, *length, dtype=torch.float32, last=last, residual=residual)
    ours = run(norm_lif, inputs, slope, membrane, 4, training)
    exact = run(norm_lif_twin, {k: t.double() for k, t in inputs.items()}, slope, membrane, 4, training)
    differ = (ours[0] != exact[0]).flatten()
    assert differ.sum() <= max(1, 1e-5 * differ.numel())
    if not differ.any():
        for a, b in zip(ours[1:], exact[1:], strict=True):
            assert torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-4 * b.abs().max().item())


@pytest.mark.parametrize("membrane", [Membrane(), Membrane(1.5, 0.7, None, False, True)], ids=str)
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
@both_layouts
def test_module_equals_batch_norm_and_spikingjellys_node(kind, momentum, membrane, last):
    torch.manual_seed(0)  # or now and then nearly nothing fires
    times, shape = 4, (12, 5, 21) if kind is nn.BatchNorm1d else (12, 5, 6, 7)
    norm = kind(5, momentum=momentum).double()
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias)
    theirs = copy.deepcopy(norm)
    options = {"tau": membrane.tau, "v_threshold": membrane.threshold, "v_reset": membrane.reset, "step_mode": "m"}
    options |= {"decay_input": membrane.decay_input, "detach_reset": membrane.detach_reset}
    for mode in (True, True, False):
        norm.train(mode)
        theirs.train(mode)
        x = torch.randn(shape, dtype=torch.float64)
        x = channels_last(x) if last else x
        a, b = (x.clone().requires_grad_() for _ in range(2))
        ours = batch_norm_lif(norm, a, torch.tensor(2.7, dtype=torch.float64), membrane, times)
        node = neuron.LIFNode(**options, surrogate_function=surrogate.Sigmoid(2.7))
        expected = node(theirs(b).unflatten(0, (times, -1))).flatten(0, 1)
        assert ours.mean() > 0.02
        assert torch.equal(ours, expected)
        weights = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view_as(x)
        (ours * weights).sum().backward()
        (expected * weights).sum().backward()
        assert torch.allclose(a.grad, b.grad, rtol=0, atol=1e-9)
    for name, value in norm.state_dict().items():
        assert torch.allclose(value, theirs.state_dict()[name], rtol=0, atol=1e-12), name
    for p, q in zip(norm.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=0, atol=1e-9)


def test_a_norm_without_running_statistics_always_measures():
    norm = nn.BatchNorm1d(3, track_running_stats=False, affine=False).eval()
    x = torch.randn(8, 3, 20) * 5 + 9
    spikes = batch_norm_lif(norm, x, torch.tensor(4.0), Membrane(), 4)
    assert torch.equal(spikes, norm_lif_twin(x, *[None] * 4, torch.tensor(4.0), Membrane(), 4, True, 0.1, 1e-5, "ATan"))


@pytest.mark.parametrize("sizes", [(4, 2, 1, 5000), (4, 3, 5, 64), (4, 2, 7, 33), (2, 9, 12, 130), (2, 4, 192, 99)])
@both_layouts
@with_and_without
def test_bits_do_not_depend_on_the_number_of_threads(sizes, last, residual, with_threads):
    inputs = problem(*sizes, dtype=torch.float32, last=last, residual=residual)
    found = with_threads(lambda: run(norm_lif, inputs, torch.tensor(4.0), Membrane(), sizes[0]))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@both_layouts
def test_a_residual_is_added_after_normalisation(last):
    # One channel with the values -2, 0, 2, 0: mean 0, variance 2; weight 2^0.5 makes the normalised values x itself.
    x, residual = torch.tensor([[-2, 0, 2, 0], [2.5, 0.5, -0.5, 1]], dtype=torch.float64).view(2, 2, 1, 2)
    weight = torch.tensor([2**0.5], dtype=torch.float64)
    if last:
        x, residual = channels_last(x.repeat(1, 2, 1)), channels_last(residual.repeat(1, 2, 1))
        weight = weight.repeat(2)
    residual.requires_grad_()
    membrane = Membrane(decay_input=False, detach_reset=True)
    options = {"training": True, "eps": 0.0, "residual": residual}
    slope = torch.tensor(4.0, dtype=torch.float64)
    spikes = norm_lif(x, weight, None, None, None, slope, membrane, 2, **options)
    # Currents 0.5, 0.5, then 1.5, 1; membranes 0.5, 0.5, then 0.25 + 1.5 and 0.25 + 1.
    assert spikes[:, 0].tolist() == [[0, 0], [1, 1]]
    spikes[1].sum().backward()
    sigmoid = torch.sigmoid(4 * torch.tensor([0.75, 0.25], dtype=torch.float64))
    then = 4 * sigmoid * (1 - sigmoid)  # of the second step; the first acts through half of what is left of it
    expected = torch.stack([then / 2, then])
    assert torch.allclose(residual.grad[:, 0], expected, rtol=1e-12, atol=0)


def test_a_residual_in_another_memory_order_is_read_as_it_is():
    inputs = problem(4, 2, 6, 4, 5, last=True, residual=True)
    expected = run(norm_lif, inputs, torch.tensor(4.0), Membrane(), 4)
    turned = run(norm_lif, inputs | {"residual": inputs["residual"].contiguous()}, torch.tensor(4.0), Membrane(), 4)
    assert all(torch.equal(a, b) for a, b in zip(turned, expected, strict=True))


def test_only_the_residual_may_want_a_gradient():
    inputs = problem(4, 2, 3, 70, residual=True)
    residual = inputs.pop("residual").requires_grad_()
    options = {"slope": torch.tensor(4.0), "membrane": Membrane(), "times": 4, "training": True, "residual": residual}
    norm_lif(**inputs, **options).sum().backward()
    assert residual.grad.abs().sum() > 0


def test_a_residual_of_another_shape_is_refused():
    inputs = problem(4, 2, 3, 10) | {"residual": torch.zeros(8, 1, 10, dtype=torch.float64)}
    with pytest.raises(ValueError, match=r"a residual \(8, 1, 10\) cannot be added to currents \(8, 3, 10\)"):
        run(norm_lif, inputs, torch.tensor(4.0), Membrane(), 4)


@both_layouts
def test_statistics_are_accurate_far_from_zero(last):
    x = torch.randn(64, 2, 1000) + 1000
    x = channels_last(x) if last else x
    mean, var = torch.zeros(2), torch.ones(2)
    norm_lif(x, None, None, mean, var, torch.tensor(4.0), Membrane(), 4, training=True, momentum=1.0)
    exact = x.double().transpose(0, 1).flatten(1)
    assert torch.allclose(mean.double(), exact.mean(1), rtol=1e-7, atol=0)
    assert torch.allclose(var.double(), exact.var(1), rtol=1e-6, atol=0)


def test_non_contiguous_input_is_read_as_it_is():
    inputs = problem(4, 2, 6, 4, 5)
    expected = run(norm_lif, inputs, torch.tensor(4.0), Membrane(), 4)
    inputs["x"] = inputs["x"].transpose(2, 3).contiguous().transpose(2, 3)
    assert not inputs["x"].is_contiguous()
    found = run(norm_lif, inputs, torch.tensor(4.0), Membrane(), 4)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_empty_batch_and_single_value_are_treated_as_by_batch_norm():
    options = {"slope": torch.tensor(4.0), "membrane": Membrane(), "times": 4, "training": True}
    empty = norm_lif(torch.zeros(0, 3, 8), None, None, None, None, **options)
    assert empty.shape == (0, 3, 8)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm_lif(torch.zeros(1, 3, 1), None, None, None, None, **(options | {"times": 1}))


@pytest.mark.parametrize("factor", [1e-40, 1e-30, 1e15])
@both_layouts
def test_tiny_and_huge_inputs_stay_finite(factor, last):
    inputs = problem(4, 2, 3, 70, dtype=torch.float32, last=last)
    inputs["x"] *= factor
    for training in (True, False):
        spikes, *rest = run(norm_lif, inputs, torch.tensor(4.0), Membrane(detach_reset=True), 4, training)
        assert set(spikes.unique().tolist()) <= {0.0, 1.0}
        assert all(t.isfinite().all() for t in rest)


@both_layouts
def test_nan_stays_in_its_channel(last):
    inputs = problem(4, 2, 3, 70, dtype=torch.float32, last=last)
    inputs["x"][5, 1, 7] = math.nan
    _, mean, var, grad_x, grad_weight, *_ = run(norm_lif, inputs, torch.tensor(4.0), Membrane(), 4)
    assert mean.isnan().tolist() == var.isnan().tolist() == [False, True, False]
    assert grad_x.isnan().all(2).all(0).tolist() == [False, True, False]
    assert grad_weight.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@both_layouts
@with_and_without
def test_half_precision_is_computed_in_float32(dtype, last, residual):
    inputs = problem(4, 2, 3, 70, dtype=torch.float32, last=last, residual=True)
    x = inputs["x"].to(dtype).requires_grad_()
    same = x.detach().float().requires_grad_()
    weight, more = torch.ones(3, requires_grad=True), inputs["residual"].to(dtype) if residual else None
    options = {"training": True, "residual": more}
    spikes, exact = (
        norm_lif(t, weight, None, None, None, torch.tensor(4.0), Membrane(), 4, **options) for t in (x, same)
    )
    assert spikes.dtype == dtype
    assert torch.equal(spikes.float(), exact)
    spikes.float().square().sum().backward()
    exact.square().sum().backward()
    assert torch.equal(x.grad, same.grad.to(dtype))


def test_backward_reads_the_slope_as_it_is_then():
    inputs, grads = problem(4, 2, 3, 70), []
    for first, then in ((2.0, 5.0), (5.0, 5.0)):
        x, slope = inputs["x"].clone().requires_grad_(), torch.tensor(first, dtype=torch.float64)
        spikes = norm_lif(x, None, None, None, None, slope, Membrane(), 4, training=True)
        slope.fill_(then)
        spikes.square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


@with_and_without
def test_only_x_the_residual_and_a_few_numbers_are_kept_for_backward(residual):
    inputs, kept = problem(4, 2, 3, 700, residual=residual), []
    x, more = inputs["x"].requires_grad_(), inputs.get("residual")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        norm_lif(x, None, None, None, None, torch.tensor(4.0), Membrane(), 4, training=True, residual=more)
    large = [t for t in kept if t.numel() > 100]
    assert [t.data_ptr() for t in large] == [t.data_ptr() for t in (x, more) if t is not None]


def test_slopes_that_do_not_fit_and_images_that_do_not_divide_are_refused():
    inputs = problem(4, 2, 3, 10)
    with pytest.raises(ValueError, match="3 slopes, one per time step, do not fit 4 steps"):
        run(norm_lif, inputs, torch.ones(3), Membrane(), 4)
    with pytest.raises(ValueError, match="8 images do not divide into 3 time steps"):
        run(norm_lif, inputs, torch.tensor(4.0), Membrane(), 3)


def test_other_shapes_and_no_kernels_run_the_twin(off):
    inputs = problem(4, 2, 3, 70)
    for shape in ("Sigmoid", "Erf"):
        ours, twin = (run(f, inputs, torch.tensor(2.0), Membrane(), 4, shape=shape) for f in (norm_lif, norm_lif_twin))
        assert all(torch.equal(a, b) for a, b in zip(ours, twin, strict=True))


@pytest.mark.slow
@both_layouts
@with_and_without
def test_compiled_graph_is_one_and_gives_the_gradients_of_eager(last, residual):
    torch.compiler.reset()
    norm, x, slope = nn.BatchNorm1d(3), torch.randn(8, 3, 20), torch.tensor(4.0, dtype=torch.float64)
    x = channels_last(x) if last else x
    more = torch.randn_like(x) if residual else None
    found = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)):
        module, a = copy.deepcopy(norm), x.clone().requires_grad_()
        fire = wrap(lambda a, m=module: batch_norm_lif(m, a, slope, Membrane(), 4, residual=more))
        fire(a).square().sum().backward()
        found.append([a.grad, *module.state_dict().values(), *(p.grad for p in module.parameters())])
    assert all(torch.allclose(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 5, 400])
def test_a_norm_of_another_width_is_refused(channels, training):
    norm, node = nn.BatchNorm1d(3).train(training), LIFNode(step_mode="m", carry_state=False)
    with pytest.raises(ValueError, match=f"the normalisation is for 3 channels, its input has {channels}"):
        NormLIF(nn.Identity(), norm, node)(torch.randn(2, 4, channels, 6))
