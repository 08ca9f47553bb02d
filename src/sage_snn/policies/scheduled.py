"""A slope that goes from one value to another over training, whatever the network does."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..compat import precise
from ..control import Group, group_nodes
from .policy import BASE, Policy, chosen_groups, device_of
from .settings import differences, settings_of

Way = Literal["linear", "exponential", "cosine"]
WAYS: dict[str, Callable[[float, float, float], float]] = {
    "linear": lambda start, end, share: start + (end - start) * share,
    "exponential": lambda start, end, share: start * (end / start) ** share,
    "cosine": lambda start, end, share: end + (start - end) * (1 + math.cos(math.pi * share)) / 2,
}


class Scheduled(Policy):
    """The same slope for all block nodes, from `start` to `end` over `steps` steps, constant afterwards.

    `shape` is "linear", "exponential", "cosine", or a callable from the share of the way, 0 to 1, to the slope.
    Relative, as with every policy: a node whose own slope is b gets that slope times b / 4.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        start: slope of the first step.
        end: slope of step `steps` and of all after it.
        steps: length of the way.
        shape: "linear", "exponential", "cosine", or a callable from 0..1 to the slope.
        blocks: what is controlled, described by hand; by default the attention blocks, or all layers without
            attention.
        groups: the same by its general name; pass one of the two.
    """

    def __init__(
        self,
        model: nn.Module,
        start: float = 2.0,
        end: float = 4.0,
        *,
        steps: int,
        shape: Way | Callable[[float], float] = "exponential",
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        if not (start > 0 and end > 0):
            raise ValueError(f"slopes must be positive, not start={start} and end={end}")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
        if isinstance(shape, str) and shape not in WAYS:
            raise ValueError(f"shape must be one of {', '.join(WAYS)} or a callable share -> slope, not {shape!r}")
        groups = chosen_groups(model, blocks, groups)
        super().__init__(model, group_nodes(groups), groups)
        self.start, self.end, self.steps, self.shape = start, end, steps, shape
        device = device_of(model)
        self._ratios = torch.tensor(self._nodes.bases, dtype=precise(device), device=device) / BASE
        self._done = 0
        self._nodes.hold(live=False, device=device)
        try:
            self._write()
        except BaseException:
            self.remove()
            raise

    @property
    def slope(self) -> float:
        """The slope in force."""
        return self._at(min(self._done / self.steps, 1.0))

    def _at(self, share: float) -> float:
        if isinstance(self.shape, str):
            return WAYS[self.shape](self.start, self.end, share)
        return float(self.shape(share))

    @property
    def slopes(self) -> Tensor:
        """The slope in force for each group."""
        return torch.full((len(self.groups),), self.slope, dtype=precise("cpu"))

    def step(self) -> None:
        """Go on by one step."""
        super().step()
        self._done += 1
        self._write()

    def _why_unreached(self, inside: set[nn.Module]) -> None:
        """Nothing is read in there, and there is a tensor to write to."""

    def _write(self) -> None:
        slope = self.slope
        if not slope > 0:
            raise ValueError(f"the schedule gave {slope} at step {self._done}: slopes must be positive")
        self._nodes.write(slope * self._ratios)

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("start", "end", "steps", "shape")}

    def state_dict(self) -> dict[str, Any]:
        """Steps done besides what every policy has."""
        settings = {name: settings_of(thing) for name, thing in self._settings.items()}
        return super().state_dict() | {"settings": settings, "steps": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the step of the state."""
        super().load_state_dict(state)
        if lines := differences(state["settings"], self._settings):
            told = "\n  ".join(lines)
            raise ValueError(f"this state is of another schedule:\n  {told}\nattach the same one before loading")
        self._done = int(state["steps"])
        self._write()

    def remarks(self, steps: int) -> list[str]:
        """Where a schedule that is shorter than the training stays."""
        if self.steps >= steps:
            return []
        return [
            f"the schedule ends after {self.steps} of {steps} steps: the slope stays at {self._at(1.0):g} from there"
        ]

    def describe(self) -> str:
        """The schedule besides what every policy tells."""
        way = f"{self.start:g} to {self.end:g} over {self.steps} steps, {settings_of(self.shape)}, constant afterwards"
        return f"{super().describe()}\n  slope {self.slope:.4g} after {self._done} steps: {way}"
