"""What policies with a slope for every node share: what was written, and how it is told and saved."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import precise
from ..control import Group
from .policy import BASE, Policy, device_of
from .settings import differences, settings_of


class PerNode(Policy):
    """A slope per node (nodes,), or per node and time step (nodes, T), written after every step."""

    def __init__(self, model: nn.Module, nodes: Sequence[nn.Module], groups: Sequence[Group], **settings: Any) -> None:
        super().__init__(model, nodes, groups)
        self._settings = settings
        self._device = device_of(model)
        self._bases = torch.tensor(self._nodes.bases, dtype=precise(self._device), device=self._device)
        self._written = self._bases
        index = {id(node): i for i, node in enumerate(self._nodes.nodes)}
        members = [[index[id(node)] for node in group.neurons if id(node) in index] for group in groups]
        self._members = [torch.tensor(indices, device=self._device) for indices in members]  # a list would be sent anew
        self._taken = 0
        try:
            self._nodes.require_shapes(every_step=True)
            self._nodes.hold(live=False, device=self._device)
        except BaseException:
            self.remove()
            raise

    def step(self) -> None:
        """Count the steps, for those who look now and then."""
        super().step()
        self._taken += 1

    @property
    def slopes(self) -> Tensor:
        """Mean slope of each group's nodes and time steps, as a share of their own times 4."""
        relative = self._written.reshape(len(self._bases), -1).mean(1) / self._bases * BASE
        return torch.stack([relative[members].mean() for members in self._members])

    @property
    def node_slopes(self) -> Tensor:
        """What is written to each node: (nodes,), or (nodes, T)."""
        return self._written.clone()

    def _write(self, slopes: Tensor) -> None:
        self._written = slopes
        self._nodes.write(slopes)

    def state_dict(self) -> dict[str, Any]:
        """The slopes of all nodes besides what every policy has."""
        settings = {name: settings_of(thing) for name, thing in self._settings.items()}
        return super().state_dict() | {"settings": settings, "node_slopes": self.node_slopes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write the slopes of the state; the network's own is loaded apart."""
        super().load_state_dict(state)
        if lines := differences(state["settings"], self._settings):
            told = "\n  ".join(lines)
            raise ValueError(f"this state is of other settings:\n  {told}\nattach the same policy before loading")
        if state["node_slopes"].shape != self._written.shape:
            shapes = tuple(state["node_slopes"].shape), tuple(self._written.shape)
            raise ValueError(
                f"this state has slopes of shape {shapes[0]}, here they are {shapes[1]}: same T and nodes?"
            )
        self._write(state["node_slopes"].to(self._device, copy=True))
