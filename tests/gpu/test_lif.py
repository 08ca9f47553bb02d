"""LIF in Triton against its twin: the same spikes and membranes to the bit, gradients as close as float32 lets."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from membranes import MEMBRANES

from sage_snn.kernels import path, switched_off
from sage_snn.kernels.calls import SHAPE_CODES, inverse
from sage_snn.kernels.lif import LIF, Membrane, NativeLIF, lif
from sage_snn.kernels.membrane import Watch

# Of gradients, which are rounded to the precision of the currents.
TOLERANCES = {torch.float32: 2e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
dtypes = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def currents(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1.5 + 0.4).to(dtype)


def run(function, x, v, slope, membrane, shape="Sigmoid"):
    x, v, slope = (t.clone().requires_grad_() for t in (x, v, slope))
    spikes, last = function.apply(x, v, slope, membrane, shape)[:2]
    weights = torch.cos(torch.arange(spikes.numel(), dtype=v.dtype)).view_as(spikes)
    ((weights * spikes).sum() + (weights[0] * last).sum()).backward()
    return [spikes.detach(), last.detach(), x.grad, v.grad, slope.grad]


def assert_close(found, expected, tolerance=2e-4):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance * (1 + expected.abs().max().item()))


def assert_equal_spikes_and_close_gradients(ours, twin, tolerance):
    assert torch.equal(ours[0], twin[0])
    assert torch.equal(ours[1], twin[1])
    for a, b in zip(ours[2:], twin[2:], strict=True):
        assert_close(a, b, tolerance)


def test_cpu_tensors_go_through_the_interpreter():
    assert path(torch.zeros(1)) == "Triton"


@given(
    MEMBRANES,
    st.sampled_from([1, 2, 4, 7, 12]),
    st.integers(1, 200) | st.sampled_from([1024, 1025]),
    st.sampled_from(list(SHAPE_CODES)),
    st.sampled_from(list(TOLERANCES)),
    st.booleans(),
)
def test_kernel_equals_its_twin(membrane, times, size, shape, dtype, slope_per_step):
    x, v = currents(times, size, dtype=dtype), currents(size, seed=1) / 3
    slope = torch.linspace(2, 5, times, dtype=torch.float64) if slope_per_step else torch.tensor(3.3).double()
    ours, twin = (run(f, x, v, slope, membrane, shape) for f in (NativeLIF, LIF))
    assert_equal_spikes_and_close_gradients(ours, twin, TOLERANCES[dtype])


@given(
    st.permutations(range(4)), st.permutations(range(3)), st.sampled_from([(1, 1, 1, 1), (4, 3, 1, 6), (1, 3, 5, 1)])
)
@example([0, 1, 3, 2], [0, 1, 2], (1, 1, 5, 6))
def test_any_memory_order_and_slopes_of_neurons(order, of_v, pattern):
    x, v = currents(4, 3, 5, 6), currents(3, 5, 6, seed=1) / 3
    slope = torch.rand(pattern, generator=torch.Generator().manual_seed(2)) * 3 + 2
    turned = x.permute(order).contiguous().permute(inverse(order))
    start = v.permute(of_v).contiguous().permute(inverse(of_v))
    found = []
    for function, a, b in ((NativeLIF, turned, start), (LIF, x, v)):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        spikes, last = function.apply(a, b, slope, Membrane(reset=None), "Sigmoid")[:2]
        weights = torch.cos(torch.arange(spikes.numel())).view_as(spikes)
        ((weights * spikes).sum() + (weights[0] * last).sum()).backward()
        found.append([spikes.detach(), last.detach(), a.grad, b.grad])
    assert_equal_spikes_and_close_gradients(*found, 2e-4)
    assert order[0] or found[0][0].stride() == turned.stride()  # time first in memory: nothing is copied


@given(MEMBRANES, st.sampled_from([1, 4]), st.sampled_from([3, 12]), st.booleans())
def test_tensors_for_constants_moments_and_sums_equal_those_of_the_twin(membrane, thresholds, times, one_start):
    x, weights = currents(times, 60), currents(times, 60, seed=1)
    v = torch.full((), 0.1).expand(60) if one_start else currents(60, seed=2) / 3
    found = []
    for twin in (False, True):
        threshold = torch.linspace(0.4, 0.9, times).double() if thresholds > 1 else torch.tensor(0.7)
        threshold, tau = threshold.requires_grad_(), torch.tensor(1.7).requires_grad_()
        gains, seen, a = torch.zeros(2, dtype=torch.float64, requires_grad=True), [], x.clone().requires_grad_()
        own = Membrane(tau, threshold, membrane.reset, membrane.decay_input, membrane.detach_reset)
        watch, slope = Watch(seen.append, gradients=gains), torch.tensor(3.0)
        if twin:
            with switched_off():
                spikes, last = lif(a, v, slope, own, watch=watch)
        else:
            spikes, last = lif(a, v, slope, own, watch=watch)
        ((weights * spikes).sum() + last.sum()).backward()
        found.append([spikes.detach(), last.detach(), *seen, a.grad, threshold.grad, tau.grad, gains.grad])
    assert_equal_spikes_and_close_gradients(*found, 2e-4)
    assert found[0][2].shape == (times, 4)
    assert torch.equal(found[0][2][:, [0, 3]], found[1][2][:, [0, 3]])


@dtypes
def test_gradient_of_the_last_membrane_alone_and_of_spikes_alone(dtype):
    x, v = currents(3, 70, dtype=dtype), torch.zeros(70)
    for pick in (0, 1):
        found = []
        for f in (NativeLIF, LIF):
            a = x.clone().requires_grad_()
            f.apply(a, v, torch.tensor(4.0), Membrane(), "Sigmoid")[pick].sum().backward()
            found.append(a.grad)
        assert_close(*found, TOLERANCES[dtype])


def test_spikes_by_hand():
    # tau 2 from rest: charged to 0.5, 1.25 and 2, of which the last two fire at threshold 1.
    seen, x = [], torch.tensor([[1.0, 2.5, 4.0]])
    spikes, last = lif(x, torch.zeros(3), torch.tensor(4.0), Membrane(), watch=Watch(seen.append, near=0.5))
    assert (spikes.tolist(), last.tolist()) == ([[0, 1, 1]], [0.5, 0, 0])
    assert seen[0].tolist() == [[3.0, 0.75, 0.25 + 0.0625 + 1.0, 1.0]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter
def test_large_denormal_and_special_values():
    x = torch.tensor([[math.inf, -math.inf, math.nan, 1e38, 1e-40, -3e-45, 0.5, -1e38]]).expand(3, 8)
    spikes, last = lif(x, torch.zeros(8), torch.tensor(4.0), Membrane())
    assert spikes[0].tolist() == [1, 0, 0, 1, 0, 0, 0, 0]
    # Minus infinity less minus infinity is not a number, as in the twin.
    assert last.isnan().tolist() == [False, True, True, *[False] * 5]
    with switched_off():
        twin_spikes, twin_last = lif(x[:, 3:], torch.zeros(5), torch.tensor(4.0), Membrane())
    assert torch.equal(spikes[:, 3:], twin_spikes)
    assert torch.equal(last[3:], twin_last)
    assert last[4] != 0  # a denormal number stays one


def test_half_precision_keeps_float32_membranes():
    x = currents(4, 30, dtype=torch.bfloat16)
    spikes, last = lif(x, torch.zeros(30), torch.tensor(4.0), Membrane())
    assert (spikes.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(spikes.float(), lif(x.float(), torch.zeros(30), torch.tensor(4.0), Membrane())[0])


def test_float64_and_nothing_at_all_run_in_the_twin(monkeypatch):
    monkeypatch.setattr("sage_snn.kernels.gpu.lif.launch", lambda *_, **__: pytest.fail("a kernel was launched"))
    x, v = currents(4, 30).double(), torch.zeros(30, dtype=torch.float64)
    assert lif(x, v, torch.tensor(4.0), Membrane())[0].dtype == torch.float64
    assert lif(torch.zeros(4, 0), torch.zeros(0), torch.tensor(4.0), Membrane())[0].shape == (4, 0)


def test_backward_reads_the_slope_as_it_is_then():
    x, grads = currents(4, 60), []
    for first in (1.0, 3.0):
        a, slope = x.clone().requires_grad_(), torch.tensor(first, dtype=torch.float64)
        spikes, _ = lif(a, torch.zeros(60), slope, Membrane())
        slope.fill_(3.0)
        spikes.sum().backward()
        grads.append(a.grad)
    assert torch.equal(*grads)


def test_bits_do_not_depend_on_the_order_of_programs(in_any_order):
    x, v = currents(4, 3000), torch.zeros(3000)

    def compute():
        seen, gains = [], torch.zeros(2, dtype=torch.float64, requires_grad=True)
        a, slope = x.clone().requires_grad_(), torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
        lif(a, v, slope, Membrane(), watch=Watch(seen.append, gradients=gains))[0].square().sum().backward()
        return [*seen, gains.grad, a.grad, slope.grad]

    found = in_any_order(compute)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
