"""A controller that learns: slopes move to where a step along their gradient lowers the true loss most."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..control import Group
from .policy import BASE
from .trial import COST, Loss, Trying

MEMORY = 0.9  # of the running size of differences


class Aligned(Trying):
    """Slopes that learn by trial, all groups at once: simultaneous perturbation of their logarithms.

    Every `every` steps all logarithms go up or down by `reach`, in random directions, and then the opposite way. The
    side whose trial step has the lower true loss draws the slopes towards it, by `rate` times the difference of the
    losses in units of its running size. Slopes stay within [low, high]; those that are tried may be `reach` outside.
    See `Trying` for `loss`, `length` and `step(batch)`.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        loss: a function of a batch that calls the model and gives a scalar tensor.
        slope: where it starts, for a node whose own slope is 4; another gets the same share of its own.
        every: steps from one trial to the next.
        reach: how far a trial moves the logarithm of a slope.
        rate: how far the better side draws it.
        length: of a trial step, as a share of the norm of the trained weights.
        low: smallest slope.
        high: largest slope.
        seed: of the directions that are tried.
        blocks: what is controlled, described by hand; by default the attention blocks, or all layers without
            attention.
        groups: the same by its general name; pass one of the two.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        slope: float = BASE,
        every: int = 16,
        reach: float = 0.2,
        rate: float = 0.05,
        length: float = 0.01,
        low: float = 1.0,
        high: float = 16.0,
        seed: int = 0,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 step, not {every}")
        if reach < 0 or rate < 0:
            raise ValueError(f"reach and rate must not be negative, not {reach} and {rate}")
        if not 0 < low <= slope <= high:
            raise ValueError(f"low ({low:g}) and high ({high:g}) must hold the slope {slope:g} between them")
        super().__init__(model, loss, slope=slope, length=length, blocks=blocks, groups=groups)
        self.every, self.reach, self.rate, self.low, self.high, self.seed = every, reach, rate, low, high, seed
        # Relative to the first slope, not the logarithm itself: exp(0) is 1, so that what does not move keeps its bits.
        self._offsets = torch.zeros_like(self._slopes)
        self._generator = torch.Generator().manual_seed(seed)  # on every rank the same
        self._trials, self._square = 0, 0.0
        self._losses = torch.full_like(self._slopes[:1], torch.nan).repeat(2)

    @property
    def losses(self) -> Tensor:
        """True losses of the last trial (2,), of the slopes drawn first and of the opposite ones; NaN before it."""
        return self._losses.clone()

    @property
    def size(self) -> float:
        """Running size of the difference of the two losses: the root of its mean square."""
        return math.sqrt(self._square / (1 - MEMORY**self._trials)) if self._trials else 0.0

    def _is_due(self) -> bool:
        return (self._done + 1) % self.every == 0

    def _learn(self, tried: Any, measured: Any) -> None:
        signs = 2.0 * torch.randint(2, self._offsets.shape, generator=self._generator) - 1
        signs = signs.to(self._offsets)
        candidates = [self._slopes * torch.exp(side * self.reach * signs) for side in (1, -1)]
        self._losses = self._try(candidates, tried, measured)
        first, opposite = self._losses.tolist()
        gain = opposite - first
        if not math.isfinite(gain):  # nothing is learnt from a loss that broke
            return
        self._trials += 1
        self._square = MEMORY * self._square + (1 - MEMORY) * gain**2
        pull = gain / self.size if self.size > 0 else 0.0
        lowest, highest = math.log(self.low / self.slope), math.log(self.high / self.slope)
        self._offsets = (self._offsets + self.rate * pull * signs).clamp(lowest, highest)
        self._slopes = self.slope * self._offsets.exp()

    @property
    def _settings(self) -> dict[str, Any]:
        names = ("slope", "every", "reach", "rate", "length", "low", "high", "seed")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """What was learnt, and where the generator of directions stands."""
        own = {"offsets": self._offsets.clone(), "trials": self._trials, "square": self._square}
        return super().state_dict() | own | {"losses": self.losses, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on to the same bits."""
        super().load_state_dict(state)
        self._offsets = state["offsets"].to(self._offsets, copy=True)
        self._losses = state["losses"].to(self._losses, copy=True)
        self._trials, self._square = int(state["trials"]), float(state["square"])
        self._generator.set_state(state["generator"].cpu())

    def describe(self) -> str:
        """What trials cost and what the last one found, besides what every policy tells."""
        cost = 2 * COST
        lines = [
            super().describe(),
            f"  a trial every {self.every} steps costs about {cost:.2f} steps, {cost / self.every:.0%} of the time; "
            f"{self._trials} were made",
        ]
        if self._trials:
            first, opposite = self._losses.tolist()
            lines.append(f"  losses of the last: {first:.6g} and {opposite:.6g}, usual difference {self.size:.2g}")
        return "\n".join(lines)
