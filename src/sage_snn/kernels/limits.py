"""When products walk events: up to which share of values other than zero, and from which size on.

A fixed rule for each kind of machine, so that the same numbers take the same path wherever a run goes on.
"""

from dataclasses import dataclass
from functools import cache

import torch

from ..machine import halves_wide_vectors, is_amds

# Below, a call costs more than it saves on any machine.
INPUTS, OUTPUTS, ROWS = 16, 32, 64


@dataclass(frozen=True)
class Limits:
    """Shares of a thousand values, and how many weights a product has at least."""

    forward: int
    gradient: int  # of the weights
    packed: int  # forward, where weights are kept packed
    least_forward: int
    least_gradient: int


# Dense products of 150 to 180 GFLOP/s on two cores: AMD's with AVX2, or with AVX-512 in two halves (Zen 4). They are
# as fast as lists near 300 to 450 (forward) and 200 to 300 (gradients), and at any rate if there are few weights.
USUAL = Limits(forward=300, gradient=200, packed=400, least_forward=8192, least_gradient=16384)
# As fast, with AVX2 on others, whose lists take longer in token-wise maps: near 180 to 200 and more, and 150 to 200.
LONGER_LISTS = Limits(forward=180, gradient=150, packed=240, least_forward=8192, least_gradient=16384)
# Of 250 GFLOP/s and more, with two units of 512 bits: near 180 to 300, and 90 to 190.
FAST = Limits(forward=160, gradient=90, packed=200, least_forward=8192, least_gradient=32768)
# Of 400 to 500 GFLOP/s on AMD's with two units of 512 bits (Zen 5), whose lists are as much faster: near 250 and more,
# and 120 to 250.
FAST_LISTS = Limits(forward=250, gradient=160, packed=300, least_forward=8192, least_gradient=16384)


@torch.compiler.assume_constant_result  # pyright: ignore[reportUnknownMemberType]
def limit(name: str) -> int:
    """A field of the limits of this machine, as torch uses it; a constant of a compiled graph."""
    return getattr(_limits(), name)


def gradient_limit(weight: torch.Tensor) -> int:
    """For the gradient of these weights; 0 where events never pay."""
    return limit("gradient") if weight.numel() >= limit("least_gradient") else 0


@cache
def _limits() -> Limits:
    if torch.backends.cpu.get_cpu_capability() == "AVX512" and not halves_wide_vectors():
        return FAST_LISTS if is_amds() else FAST
    return USUAL if is_amds() else LONGER_LISTS
