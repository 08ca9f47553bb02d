# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
"""Sums of a normalisation's gradients per channel, and what they take from the gradient of x."""

import triton
import triton.language as tl


@triton.jit
def store_channel_sums(to, plain, with_x, channel, channels, LAST: tl.constexpr):
    """Sums of a tile over its positions, (2, channels) at `to`."""
    AXIS: tl.constexpr = 0 if LAST else 1
    known = channel < channels
    tl.store(to + channel, tl.sum(plain, AXIS, keep_dims=True), mask=known)
    tl.store(to + channels + channel, tl.sum(with_x, AXIS, keep_dims=True), mask=known)


@triton.jit
def correction_of(level, tilt, channel, channels):
    """What the statistics of a batch take from the gradient, per channel; None where they were given."""
    if level is None:
        correction = None
    else:
        known = channel < channels
        correction = (
            tl.load(level + channel, mask=known, other=0.0),
            tl.load(tilt + channel, mask=known, other=0.0),
        )
    return correction
