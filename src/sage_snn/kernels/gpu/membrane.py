# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
"""One step of leaky integrate-and-fire on a tile, forward and backward, rounded as the twin rounds it.

All in float32, whatever was loaded. Products and sums stay apart (`launch`), divisions of the forward pass are IEEE's.
"""

import triton
import triton.language as tl


@triton.jit
def constant_at(number, values, t, step):
    """A constant of one time step: the number, or where tensors are given the value that belongs to it."""
    return number if values is None else tl.load(values + t * step).to(tl.float32)


@triton.jit
def charge(current, v, tau, rest, DECAYS: tl.constexpr):
    """Membrane before firing."""
    return v + tl.div_rn(current - (v - rest), tau) if DECAYS else v - tl.div_rn(v - rest, tau) + current


@triton.jit
def after(h, threshold, reset, HARD: tl.constexpr):
    """Membrane after firing. A choice, not `spike * reset + (1 - spike) * h`: an infinite h must not become NaN."""
    return tl.where(h >= threshold, reset if HARD else h - threshold, h)


@triton.jit
def derivative(distance, slope, SHAPE: tl.constexpr):
    """Stand-in for d spike / d distance; the shapes are those of derivatives.py."""
    if SHAPE == "Sigmoid":  # slope * s * (1 - s), written so that nothing cancels far from the threshold
        e = tl.exp(-tl.abs(slope * distance))
        stand_in = slope * e / ((1 + e) * (1 + e))
    elif SHAPE == "ATan":
        z = 1.5707963267948966 * slope * distance
        stand_in = slope / 2 / (1 + z * z)
    elif SHAPE == "Rect":
        stand_in = tl.where(tl.abs(distance) < 0.5 / slope, slope, 0.0)
    else:
        tl.static_assert(SHAPE == "PiecewiseQuadratic")
        height = slope - slope * slope * tl.abs(distance)
        stand_in = tl.where(height < 0, 0.0, height)  # false for NaN, which passes
    return stand_in


@triton.jit
def grad_of_spike(grad, h, grad_v, threshold, reset, HARD: tl.constexpr, DETACHES: tl.constexpr):
    """What a spike is to blame for: what follows it, and the reset."""
    if not DETACHES:
        if HARD:
            grad += grad_v * (reset - h)
        else:
            grad -= grad_v * threshold
    return grad


@triton.jit
def past_reset(grad_v, h, threshold, HARD: tl.constexpr):
    """Gradient of the charged membrane through the one after firing."""
    return tl.where(h >= threshold, 0.0, grad_v) if HARD else grad_v


@triton.jit
def tau_derivative(h, v, tau, rest, DECAYS: tl.constexpr):
    """d charged / d tau, v the membrane before."""
    return (v - h) / tau if DECAYS else (v - rest) / tau / tau
