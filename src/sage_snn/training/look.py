"""When the host looks at what the device has done: after every step on a CPU, now and then elsewhere.

A look makes the host wait for all that the device was asked for, and the device for the host afterwards.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..compat import norms
from ..policies.policy import may_look


@dataclass
class Step:
    """What the device knows of one optimizer step: losses () of micro-batches, norms (tensors,) of gradients by name.

    No norms where nobody minds infinite gradients. `number` counts within the epoch, `indices` are those of the images.
    """

    number: int
    losses: list[Tensor] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    norms: Tensor | None = None

    def add_gradients(self, network: nn.Module) -> None:
        """Note the gradients as they are now."""
        gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        self.names, self.norms = list(gradients), torch.stack(norms(list(gradients.values())))


@dataclass
class Broken:
    """A step whose loss or gradients are not finite, the names of those gradients' parameters, the step of the look."""

    step: Step
    loss: float
    gradients: list[str]
    seen_at: int


class Look:
    """Steps that nobody has looked at yet, and the losses of all others of the epoch: their sum, and the last one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.loss_sum, self.last = 0.0, math.nan
        self._steps: list[Step] = []

    def note(self, step: Step) -> None:
        """Keep a step until the next look."""
        self._steps.append(step)

    def is_due(self, step: int, last: int) -> bool:
        """Is it time after this step of an epoch of so many?"""
        return may_look(self.device, step) or step == last

    def look(self) -> Broken | None:
        """Read all steps since the last look; the first of them that is broken."""
        steps, self._steps = self._steps, []
        if not steps:
            return None
        broken: list[Broken] = []
        for step, loss, is_finite in zip(steps, _losses(steps), _finite(steps), strict=True):
            if not broken and not (math.isfinite(loss) and is_finite):
                broken.append(Broken(step, loss, _broken_names(step), steps[-1].number))
            self.loss_sum, self.last = self.loss_sum + loss, loss
        return broken[0] if broken else None

    def restart(self) -> None:
        """An epoch begins."""
        self.loss_sum, self.last = 0.0, math.nan


def _losses(steps: list[Step]) -> Iterator[float]:
    """Of each step, the sum of its micro-batches'."""
    read = iter(torch.stack([loss for step in steps for loss in step.losses]).tolist())
    for step in steps:
        total = 0.0
        for _ in step.losses:
            total += next(read)
        yield total


def _finite(steps: list[Step]) -> list[bool]:
    """Whether the gradients of each step are."""
    sums = [torch.zeros(()) if step.norms is None else step.norms.sum() for step in steps]
    return torch.stack(sums).isfinite().tolist()


def _broken_names(step: Step) -> list[str]:
    if step.norms is None:
        return []
    return [name for name, norm in zip(step.names, step.norms.tolist(), strict=True) if not math.isfinite(norm)]
