"""One slope for the whole training: what everybody does, and what the others are compared with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..control import Group, find_groups, group_nodes
from .policy import BASE, Policy, device_of


class Fixed(Policy):
    """The same slope for all block nodes and the whole training; 4 is what everybody uses."""

    def __init__(self, model: nn.Module, slope: float = BASE, *, blocks: Sequence[Group] | None = None) -> None:
        if not slope > 0:
            raise ValueError(f"a slope must be positive, not {slope}")
        groups = find_groups(model) if blocks is None else blocks
        super().__init__(model, group_nodes(groups), groups)
        self._slope = slope
        self._nodes.hold(live=False, device=device_of(model))
        self._nodes.write(slope * torch.tensor(self._nodes.bases, dtype=torch.float64) / BASE)

    @property
    def slopes(self) -> Tensor:
        """The given slope for each block."""
        return torch.full((len(self.groups),), self._slope, dtype=torch.float64)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore: the state must be of the same slope."""
        super().load_state_dict(state)
        if state["slopes"].tolist() != self.slopes.tolist():
            raise ValueError(
                f"this state is of slopes {state['slopes'].tolist()}, here they are {self.slopes.tolist()}"
            )
