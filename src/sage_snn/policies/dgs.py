"""DGS: the slope is searched by finite differences (after Che et al., NeurIPS 2022)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..control import Group
from .policy import BASE
from .trial import COST, Loss, Trying


class DGS(Trying):
    """One slope for all groups, moved by a search over some batches at the start of every period but the first.

    A period is `every` steps, a search its first `batches`. On each batch the slope itself and `pairs` of neighbours,
    `delta` apart, take a trial step; softmax weights over them, equal at first, take a gradient step of length 1 on
    the mean of their losses, and are added up. In the end the slope moves to the largest sum, not below `floor`.
    See `Trying` for `loss`, `length` and `step(batch)`.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        loss: a function of a batch that calls the model and gives a scalar tensor.
        every: steps of a period.
        batches: of a search, at the start of a period.
        slope: where it starts, for a node whose own slope is 4; another gets the same share of its own.
        delta: from one candidate to the next.
        pairs: of candidates, one above and one below.
        floor: smallest slope.
        length: of a trial step, as a share of the norm of the trained weights.
        blocks: what is controlled, described by hand; by default the attention blocks, or all layers without
            attention.
        groups: the same by its general name; pass one of the two.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        every: int,
        batches: int = 200,
        slope: float = BASE,
        delta: float = 0.2,
        pairs: int = 1,
        floor: float = 0.2,
        length: float = 0.01,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> None:
        if not 1 <= batches <= every:
            raise ValueError(
                f"a search of {batches} batches does not fit into every={every} steps: 1 <= batches <= every"
            )
        if pairs < 0 or delta <= 0:
            raise ValueError(f"pairs must not be negative and delta must be positive, not {pairs} and {delta}")
        if not 0 < floor <= slope:
            raise ValueError(f"floor must be positive and not above the slope {slope:g}, not {floor:g}")
        super().__init__(model, loss, slope=slope, length=length, blocks=blocks, groups=groups)
        self.every, self.batches, self.delta, self.pairs, self.floor = every, batches, delta, pairs, floor
        self._votes = torch.zeros(1 + 2 * pairs, dtype=self._slopes.dtype, device=self._slopes.device)

    @property
    def candidates(self) -> list[float]:
        """The slope in force first, then its neighbours."""
        current = float(self._slopes[0])
        sides = [side * self.delta * (i + 1) for i in range(self.pairs) for side in (-1, 1)]
        return [current, *(max(current + offset, self.floor) for offset in sides)]

    @property
    def votes(self) -> Tensor:
        """Sum over the batches of this search of each candidate's softmax weight (candidates,)."""
        return self._votes.clone()

    def _is_due(self) -> bool:
        return self.pairs > 0 and self._done >= self.every and self._done % self.every < self.batches

    def _learn(self, tried: Any, measured: Any) -> None:
        candidates = self.candidates
        losses = self._try([torch.full_like(self._slopes, slope) for slope in candidates], tried, measured)
        if losses.isfinite().all():  # nothing is learnt from a loss that broke
            self._votes = self._votes + weights_after_a_step(losses)
        if self._done % self.every == self.batches - 1:
            # argmax of equal sums may be any of them: a neighbour must be ahead of the slope in force
            best = int(self._votes.argmax())
            if self._votes[best] > self._votes[0]:
                self._slopes = torch.full_like(self._slopes, candidates[best])
            self._votes = torch.zeros_like(self._votes)

    @property
    def _settings(self) -> dict[str, Any]:
        names = ("slope", "every", "batches", "delta", "pairs", "floor", "length")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """The sums of a search that goes on, besides."""
        return super().state_dict() | {"votes": self.votes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on to the same bits."""
        super().load_state_dict(state)
        self._votes = state["votes"].to(self._votes, copy=True)

    def describe(self) -> str:
        """What a search costs, besides what every policy tells."""
        if not self.pairs:
            return f"{super().describe()}\n  no neighbours to try: the slope stays"
        cost = (1 + 2 * self.pairs) * COST
        told = ", ".join(f"{slope:.4g}" for slope in self.candidates)
        return (
            f"{super().describe()}\n  candidates {told}; a search every {self.every} steps costs about {cost:.2f} "
            f"steps for each of its {self.batches} batches, {cost * self.batches / self.every:.0%} of the time"
        )


def weights_after_a_step(losses: Tensor) -> Tensor:
    """Softmax weights (candidates,), equal at first, after a gradient step of rate 1 on the mean loss they give."""
    # The derivative of sum_i p_i L_i by the logit of candidate i is p_i (L_i - sum_j p_j L_j), with all p_i = 1 / n.
    return torch.softmax((losses.mean() - losses) / len(losses), 0)
