"""Laws: from centred scores to slopes (equation 8). A law is any callable `z (blocks,) -> slopes (blocks,)`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Law = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DeadZoneTanh:
    """`base` inside the dead zone, `base + gain * tanh(z)` outside, clipped to [low, high].

    A positive gain narrows the surrogate of disagreeing blocks, a negative one broadens it. `continuous` removes the
    jump of `gain * tanh(dead_zone)` at the edge: outside, `base + gain * tanh(z -+ dead_zone)`.

    Args:
        base: slope of a group like the others.
        gain: largest move away from it; negative to broaden.
        dead_zone: scores nearer to 0 than this move nothing.
        low: smallest slope.
        high: largest slope.
        continuous: without the jump at the edge of the dead zone.
    """

    base: float = 4.0
    gain: float = 0.5  # Choice: decision 1, the sign is that of the equations
    dead_zone: float = 0.25
    low: float = 3.0
    high: float = 5.0
    continuous: bool = False  # Choice: decision 12

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.base <= self.high:
            raise ValueError(
                f"slopes must be positive and bound the base: 0 < low <= base <= high, "
                f"not low={self.low}, base={self.base}, high={self.high}"
            )
        if self.dead_zone < 0:
            raise ValueError(f"dead_zone must not be negative, not {self.dead_zone}")

    def __call__(self, z: Tensor) -> Tensor:
        """Slopes (blocks,) of the scores (blocks,)."""
        reach = z - z.clamp(-self.dead_zone, self.dead_zone) if self.continuous else z
        moved = self.base + self.gain * torch.tanh(reach)
        return torch.where(z.abs() < self.dead_zone, self.base, moved).clamp(self.low, self.high)


def check_law(law: Law, z: Tensor) -> None:
    """Refuse a law that does not give a positive slope per block, for z (blocks,) of zeros."""
    base = getattr(law, "base", 1.0)
    if not isinstance(base, int | float) or not base > 0:
        raise ValueError(f"the base of a law must be a positive number, not {base!r}")
    for score in (-3.0, 0.0, 3.0):  # scores of a normalised series hardly go further
        slopes = law(z + score)
        if slopes.shape != z.shape or not bool((slopes > 0).all()):
            raise ValueError(f"a law must give one positive slope per block, ({len(z)},), not {slopes} for {score}")
