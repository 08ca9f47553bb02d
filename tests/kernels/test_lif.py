import ctypes
import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from membranes import MEMBRANES

from sage_snn.kernels import native
from sage_snn.kernels.calls import SHAPE_CODES, function, inverse
from sage_snn.kernels.lif import LIF, Membrane, NativeLIF, lif


def run(function, currents, v, slope, membrane, shape="Sigmoid"):
    currents, v, slope = (t.clone().requires_grad_() for t in (currents, v, slope))
    spikes, last = function.apply(currents, v, slope, membrane, shape)[:2]
    weights = torch.cos(torch.arange(spikes.numel(), dtype=v.dtype)).view_as(spikes)
    ((weights * spikes).sum() + (weights[0] * last).sum()).backward()
    return [spikes.detach(), last.detach(), currents.grad, v.grad, slope.grad]


def currents(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype) * 1.5 + 0.4


@settings(deadline=None, max_examples=120)
@given(
    MEMBRANES,
    st.sampled_from([1, 2, 4, 12, 33]),
    st.integers(1, 200),
    st.sampled_from(list(SHAPE_CODES)),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_kernel_equals_its_twin(membrane, times, size, shape, dtype, slope_per_step):
    x, v = currents(times, size, dtype=dtype), currents(size, dtype=dtype) / 3
    slope = torch.linspace(2, 5, times, dtype=torch.float64) if slope_per_step else torch.tensor(3.3).double()
    ours, twin = (run(f, x, v, slope, membrane, shape) for f in (NativeLIF, LIF))
    assert torch.equal(ours[0], twin[0])
    assert torch.equal(ours[1], twin[1])  # to the bit, in float32 too
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    for a, b in zip(ours[2:], twin[2:], strict=True):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance * (1 + b.abs().max().item()))


def test_bits_do_not_depend_on_the_number_of_threads(with_threads):
    x, v = currents(4, 3, 211, dtype=torch.float32), torch.zeros(3, 211)
    found = with_threads(lambda: run(NativeLIF, x, v, torch.tensor(4.0), Membrane()))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_one_value_to_start_from_is_kept_as_one_value():
    x, rest, kept = currents(4, 300).requires_grad_(), torch.full((), 0.1, dtype=torch.float64), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        spikes, _ = lif(x, rest.expand(300), torch.tensor(4.0), Membrane())
    assert sorted(t.untyped_storage().nbytes() for t in kept) == [8, 4 * 300 * 8]
    assert torch.equal(spikes, lif(x, torch.full((300,), 0.1).double(), torch.tensor(4.0), Membrane())[0])


def test_non_contiguous_and_half_currents():
    x, v = currents(4, 30, 20, dtype=torch.float32), torch.zeros(20, 30)
    turned = x.transpose(1, 2)
    expected, _ = lif(turned.contiguous(), v, torch.tensor(4.0), Membrane())
    assert torch.equal(lif(turned, v, torch.tensor(4.0), Membrane())[0], expected)
    half = turned.to(torch.bfloat16)
    spikes, last = lif(half, v, torch.tensor(4.0), Membrane())
    assert (spikes.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(spikes.float(), lif(half.float(), v, torch.tensor(4.0), Membrane())[0])


@settings(deadline=None)
@given(st.permutations(range(4)), st.permutations(range(3)))
def test_any_memory_order_gives_the_same_values_and_gradients(order, of_v):
    x, v = currents(4, 3, 5, 6), currents(3, 5, 6) / 3
    expected = run(LIF, x, v, torch.tensor(3.3).double(), Membrane())
    turned = x.permute(order).contiguous().permute(inverse(order))
    start = v.permute(of_v).contiguous().permute(inverse(of_v))
    found = run(NativeLIF, turned, start, torch.tensor(3.3).double(), Membrane())
    assert torch.equal(found[0], expected[0])
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(found, expected, strict=True))
    assert order[0] or found[0].stride() == turned.stride()  # time first in memory: nothing is copied


def test_gradient_of_the_last_membrane_alone_and_of_spikes_alone():
    x, v = currents(3, 70), torch.zeros(70, dtype=torch.float64)
    for pick in (0, 1):
        found = []
        for f in (NativeLIF, LIF):
            a = x.clone().requires_grad_()
            f.apply(a, v, torch.tensor(4.0), Membrane(), "Sigmoid")[pick].sum().backward()
            found.append(a.grad)
        assert torch.allclose(*found, rtol=0, atol=1e-12)


def test_nothing_to_do_and_special_values():
    assert lif(torch.zeros(4, 0), torch.zeros(0), torch.tensor(4.0), Membrane())[0].shape == (4, 0)
    x = torch.tensor([[math.inf, -math.inf, math.nan, 1e38, 1e-40, 0.5]]).expand(3, 6)
    spikes, last = lif(x, torch.zeros(6), torch.tensor(4.0), Membrane())
    assert spikes[0].tolist() == [1, 0, 0, 1, 0, 0]
    # Minus infinity less minus infinity is not a number, as in the twin.
    assert last.isnan().tolist() == [False, True, True, False, False, False]


def test_exponential_is_within_two_units_in_the_last_place():
    x = torch.cat([-torch.rand(200_000) * 87, -torch.rand(50_000) * 1e-3, torch.tensor([0.0, -87.33, -90.0, -1e30])])
    x = torch.cat([x, torch.tensor([-math.inf, math.nan])])
    found = torch.empty_like(x)
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, found))
    native.library().sage_exp_negative(*pointers, ctypes.c_int64(len(x)))
    exact = x.double().exp()
    unit = torch.nextafter(exact.float(), torch.tensor(math.inf)).double() - exact.float().double()
    assert ((found.double() - exact).abs() / unit)[:-4].max() <= 2
    assert found[-4:-1].tolist() == [0, 0, 0]
    assert found[-1].isnan()


def test_off_runs_the_twin(off):
    x, v = currents(4, 30), torch.zeros(30, dtype=torch.float64)
    assert not native.is_available()
    assert torch.equal(
        lif(x, v, torch.tensor(4.0), Membrane())[0], LIF.apply(x, v, torch.tensor(4.0), Membrane(), "Sigmoid")[0]
    )


def test_operators_pass_torchs_own_check():
    x, v, slope = currents(4, 30), torch.zeros(30, dtype=torch.float64), torch.tensor(4.0)
    tests = ("test_schema", "test_faketensor")
    options = Membrane().options
    torch.library.opcheck(torch.ops.sage_snn.lif.default, (x, v), options, test_utils=tests)
    inputs, chosen = (x, None, x, v, slope), Membrane(reset=None).options
    chosen |= {"detach_reset": False, "shape": "ATan", "wants_slope": True}
    torch.library.opcheck(torch.ops.sage_snn.lif_backward.default, inputs, chosen, test_utils=tests)
    images, chosen = x.view(4, 3, 10), options | {"times": 2, "eps": 1e-5}
    for residual in (None, images):
        inputs = images, None, None, None, None, residual
        torch.library.opcheck(torch.ops.sage_snn.norm_lif.default, inputs, chosen, test_utils=tests)
        inputs = images, images, None, None, v[:3], v[:3] + 1, residual, slope
        backward = chosen | {"training": True, "detach_reset": False, "shape": "ATan", "wants_slope": True}
        torch.library.opcheck(torch.ops.sage_snn.norm_lif_backward.default, inputs, backward, test_utils=tests)
    last = images.movedim(1, -1).contiguous().movedim(-1, 1)
    chosen = {"eps": 1e-5}
    torch.library.opcheck(torch.ops.sage_snn.norm.default, (last, *[None] * 4), chosen, test_utils=tests)
    inputs = last, last, None, v[:3], v[:3] + 1
    chosen |= {"training": True}
    torch.library.opcheck(torch.ops.sage_snn.norm_backward.default, inputs, chosen, test_utils=tests)
    assert callable(function("sage_lif", torch.float64))


def test_operators_with_tensors_for_constants_pass_torchs_own_check():
    x, v, tests = currents(4, 30), torch.zeros(30, dtype=torch.float64), ("test_schema", "test_faketensor")
    constants = {"thresholds": torch.full((4,), 0.5), "time_constant": torch.tensor(1.5)}
    forward = Membrane().options | constants | {"near": 0.5}
    backward = Membrane().options | constants | {"detach_reset": False, "shape": "Sigmoid", "wants_slope": False}
    backward |= {"wants_constants": True, "wants_squares": True}
    torch.library.opcheck(torch.ops.sage_snn.lif.default, (x, v), forward, test_utils=tests)
    inputs = x, None, x, v, torch.ones(1, 30, 1, 1)
    torch.library.opcheck(torch.ops.sage_snn.lif_backward.default, inputs, backward, test_utils=tests)
    images = x.repeat(2, 1).view(8, 3, 10)
    for layout in (images, images.movedim(1, -1).contiguous().movedim(-1, 1)):
        chosen = {"times": 4, "eps": 1e-5}
        inputs = layout, *[None] * 5
        torch.library.opcheck(torch.ops.sage_snn.norm_lif.default, inputs, forward | chosen, test_utils=tests)
        inputs = layout, layout, None, None, v[:3], v[:3] + 1, layout, torch.ones(4, 2, 1, 10)
        chosen |= {"training": True}
        torch.library.opcheck(torch.ops.sage_snn.norm_lif_backward.default, inputs, backward | chosen, test_utils=tests)


@pytest.mark.parametrize("shape", [(), (1,), (8,), (10,), (100_000,), (4, 9)])
@pytest.mark.parametrize("is_off", [False, True])
def test_a_membrane_of_other_neurons_is_refused_before_it_is_read(shape, is_off):
    with native.switched_off() if is_off else nullcontext(), pytest.raises(ValueError, match=r"it needs \(9,\)"):
        lif(torch.zeros(4, 9), torch.zeros(shape), torch.tensor(4.0), Membrane())
