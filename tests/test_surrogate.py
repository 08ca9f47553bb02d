import math

import pytest
import torch
from spikingjelly.activation_based import surrogate

from sage_snn.surrogate import SHAPES, LearntSlope, TensorSurrogate, WrittenSlope, log_slope, spike

SLOPES = [0.7, 2.0, 4.3]


def distances(dtype=torch.float64):
    x = torch.cat([torch.linspace(-3, 3, 401, dtype=dtype), torch.tensor([0.0, -0.0, 1e-9, -1e-9], dtype=dtype)])
    return x.requires_grad_()


def value_and_gradient(function, dtype):
    x = distances(dtype)
    y = function(x)
    y.backward(torch.linspace(-1, 2, len(x), dtype=dtype))
    return y.detach(), x.grad


def smooth(shape, x, slope):
    """The function whose derivative the shape is."""
    if shape == "SuperSpike":
        return slope * x / (1 + x.abs())
    return getattr(surrogate, shape).primitive_function(x.clone(), slope)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_spikes_and_gradients_equal_spikingjelly(shape, slope, dtype, tolerance):
    tensor = torch.tensor(slope, dtype=torch.float64)
    ours, our_gradient = value_and_gradient(lambda x: spike(x, tensor, shape), dtype)
    theirs, their_gradient = value_and_gradient(getattr(surrogate, shape)(alpha=slope), dtype)
    assert torch.equal(ours, theirs)
    assert our_gradient.dtype == dtype
    assert torch.allclose(our_gradient, their_gradient, rtol=tolerance, atol=tolerance)


def test_every_shape_of_spikingjellys_fast_path_is_known():
    expected = {"Sigmoid", "ATan", "PiecewiseQuadratic", "PiecewiseExp", "SoftSign", "SuperSpike", "Erf"}
    assert set(SHAPES) == expected | {"Rect"}


@pytest.mark.parametrize(
    ("shape", "factor"),
    [("Sigmoid", 1 / 4), ("ATan", 1 / 2), ("PiecewiseQuadratic", 1), ("Rect", 1), ("Erf", 1 / math.sqrt(math.pi))],
)
@pytest.mark.parametrize("slope", SLOPES)
def test_gradient_at_threshold_is_proportional_to_the_slope(shape, factor, slope):
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    spike(x, torch.tensor(slope, dtype=torch.float64), shape).sum().backward()
    assert x.grad.item() == pytest.approx(slope * factor, abs=1e-15)


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_learnable_slope_gradient_equals_finite_differences(shape, slope):
    x, step = distances().detach() * 0.9731, 1e-6  # off the kink of the triangle at 1 / slope
    weights = torch.cos(torch.arange(len(x), dtype=torch.float64))
    tensor = torch.tensor(slope, dtype=torch.float64, requires_grad=True)
    (weights * spike(x, tensor, shape)).sum().backward()
    above, below = ((weights * smooth(shape, x, slope + d)).sum() for d in (step, -step))
    assert tensor.grad.item() == pytest.approx(((above - below) / (2 * step)).item(), rel=1e-6, abs=1e-7)


def test_learnable_sigmoid_gradient_is_the_defined_one():
    x, g = torch.tensor([-0.4, 0.2, 1.1], dtype=torch.float64), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    slope = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    spike(x, slope).backward(g)
    s = 1 / (1 + torch.exp(-3.0 * x))
    assert slope.grad.item() == pytest.approx((g * x * s * (1 - s)).sum().item(), abs=1e-15)


@pytest.mark.parametrize(("live", "used_by_backward"), [(False, 4.0), (True, 8.0)])
def test_backward_uses_a_slope_written_after_forward_only_when_live(live, used_by_backward):
    slope = WrittenSlope(4.0, live=live)
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    fired = TensorSurrogate("Sigmoid", slope)(x)
    slope.tensor.fill_(8.0)
    fired.sum().backward()
    assert x.grad.item() == used_by_backward / 4


def test_written_slope_is_used_by_the_next_forward():
    slope = WrittenSlope(4.0)
    slope.tensor.fill_(5.0)
    assert slope().item() == 5.0
    assert slope().dtype == torch.float64


def test_slope_never_changes_a_spike():
    x = distances().detach()
    assert torch.equal(spike(x, torch.tensor(3.0)), spike(x, torch.tensor(5.0)))


def test_learnt_slope_is_positive_and_starts_at_its_value():
    parameter = log_slope(4.0)
    assert LearntSlope(parameter)().item() == pytest.approx(4.0, rel=1e-6)
    assert LearntSlope(parameter, ratio=0.5)().item() == pytest.approx(2.0, rel=1e-6)
    parameter.data.fill_(-30.0)
    assert LearntSlope(parameter)().item() > 0
    assert log_slope(4.0, steps=3).shape == (3,)


def test_learnt_slope_passes_the_gradient_to_its_parameter():
    parameter, x = log_slope(4.0), distances().detach()
    TensorSurrogate("Sigmoid", LearntSlope(parameter, ratio=0.5))(x).sum().backward()
    slope = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    spike(x, slope).sum().backward()
    assert parameter.grad.item() == pytest.approx(2.0 * slope.grad.item(), rel=1e-6)


def test_tensor_surrogate_shows_its_slope_as_alpha():
    module = TensorSurrogate("ATan", LearntSlope(log_slope(2.0)))
    assert module.alpha.item() == pytest.approx(2.0, rel=1e-6)
    assert not module.alpha.requires_grad
    assert list(module.state_dict()) == []


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_learnt_slope_must_start_positive(value):
    with pytest.raises(ValueError, match="a slope must be positive"):
        log_slope(value)


def test_unknown_shape_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown surrogate shape 'Box'; known are Sigmoid, ATan, .*Erf, Rect"):
        spike(torch.zeros(1), torch.tensor(4.0), "Box")
