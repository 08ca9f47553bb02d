"""One slope for the whole training: what everybody does, and what the others are compared with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import precise
from ..control import Group, group_nodes
from .policy import BASE, Policy, chosen_groups, device_of


class Fixed(Policy):
    """The same slope for all block nodes and the whole training; 4 is what everybody uses.

    Relative, as with every policy: a node whose own slope is b gets `slope * b / 4`. With `absolute` it gets `slope`.

    Args:
        model: the network whose nodes are controlled, until `remove()`; on its device already.
        slope: of all nodes, positive.
        blocks: what is controlled, described by hand; by default the attention blocks, or all layers without
            attention.
        groups: the same by its general name; pass one of the two.
        absolute: `slope` itself, whatever the node was built with.
    """

    def __init__(
        self,
        model: nn.Module,
        slope: float = BASE,
        *,
        blocks: Sequence[Group] | None = None,
        groups: Sequence[Group] | None = None,
        absolute: bool = False,
    ) -> None:
        if not slope > 0:
            raise ValueError(f"a slope must be positive, not {slope}")
        groups = chosen_groups(model, blocks, groups)
        super().__init__(model, group_nodes(groups), groups)
        self._slope, self.absolute = slope, absolute
        self._nodes.hold(live=False, device=device_of(model))
        device = device_of(model)
        bases = torch.tensor(self._nodes.bases, dtype=precise(device), device=device)
        self._nodes.write(torch.full_like(bases, slope) if absolute else slope * bases / BASE)

    @property
    def slopes(self) -> Tensor:
        """The given slope for each block."""
        return torch.full((len(self.groups),), self._slope, dtype=precise("cpu"))

    def describe(self) -> str:
        """The slope besides what every policy tells."""
        return f"{super().describe()}\n  slope {self._slope:g}{' as it is, whatever the base' * self.absolute}"

    @property
    def _why_not_captured(self) -> None:
        """What never changes may be baked in."""

    def _why_unreached(self, inside: set[nn.Module]) -> None:
        """Nothing is read in there, and there is a tensor to write to."""

    def _relative_slopes(self) -> list[str]:
        return [] if self.absolute else super()._relative_slopes()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore: the state must be of the same slope."""
        super().load_state_dict(state)
        if state["slopes"].tolist() != self.slopes.tolist():
            raise ValueError(
                f"this state is of slopes {state['slopes'].tolist()}, here they are {self.slopes.tolist()}"
            )
