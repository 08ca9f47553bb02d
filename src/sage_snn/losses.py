"""Losses of networks that answer at every time step: callables (step_logits (T, B, classes), targets) -> ().

Targets are classes (B,) or soft targets (B, classes), as mixing and smoothing give them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor


def _checked(step_logits: Tensor, targets: Tensor) -> Tensor:
    """The logits, if both are what a loss over time needs."""
    if step_logits.ndim != 3:
        raise ValueError(
            f"expected the logits of every time step (T, B, classes), got {tuple(step_logits.shape)}; "
            "use a network that gives them, such as model.forward_steps(x) of ours, or add a time axis: logits[None]"
        )
    if not targets.is_floating_point():
        return step_logits
    if targets.shape != step_logits.shape[1:]:
        raise ValueError(
            f"soft targets {tuple(targets.shape)} do not fit logits {tuple(step_logits.shape)}; give (B, classes)"
        )
    # On other devices the look at the values would make every step wait for them; mixing rounds.
    is_seen = targets.device.type == "cpu" and not torch.compiler.is_compiling()
    if is_seen and not ((targets >= 0) & (targets <= 1 + 1e-6)).all():
        raise ValueError(
            f"soft targets are probabilities in [0, 1], these reach from {float(targets.min()):g} to "
            f"{float(targets.max()):g}; normalise them, or pass classes as whole numbers"
        )
    return step_logits


@dataclass(frozen=True)
class CrossEntropy:
    """Of the logits' mean over time, which is all it needs."""

    needs_steps: ClassVar[bool] = False

    def __call__(self, step_logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch."""
        return F.cross_entropy(_checked(step_logits, targets).mean(0), targets)


@dataclass(frozen=True)
class SumCrossEntropy:
    """Of the logits' sum over time: the membrane of an output layer that never fires."""

    needs_steps: ClassVar[bool] = True

    def __call__(self, step_logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch."""
        return F.cross_entropy(_checked(step_logits, targets).sum(0), targets)


@dataclass(frozen=True)
class TET:
    """Temporal efficient training (Deng et al., ICLR 2022): cross entropy at every time step.

    `(1 - weight)` times its mean over time, plus `weight` times the mean squared distance of all logits to `target`.

    Args:
        weight: of the second part, 0 to 1.
        target: of all logits in it.
    """

    weight: float = 0.05
    target: float = 1.0
    needs_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"the weight of TET's second term must be in [0, 1], not {self.weight}")

    def __call__(self, step_logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over time and batch."""
        _checked(step_logits, targets)
        every_step = targets.repeat(len(step_logits), *[1] * (targets.ndim - 1))
        entropy = F.cross_entropy(step_logits.flatten(0, 1), every_step)
        distance = (step_logits - self.target).square().mean()
        return (1 - self.weight) * entropy + self.weight * distance
