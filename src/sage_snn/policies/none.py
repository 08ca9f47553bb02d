"""No policy: every slope stays what its node was built with."""

import weakref

import torch
from torch import Tensor, nn

from ..compat import precise
from ..control import NodeSlopes
from .policy import Policy


class Unchanged(Policy):
    """Controls nothing, so that a network without spiking neurons, an ANN, can be trained in the same loop."""

    def __init__(self, model: nn.Module) -> None:
        # Not Policy's own: it refuses to control nothing.
        self.groups, self._nodes = [], NodeSlopes(())
        self._model, self._is_attached = weakref.ref(model), True

    @property
    def slopes(self) -> Tensor:
        """Of no block."""
        return torch.empty(0, dtype=precise("cpu"))

    def describe(self) -> str:
        """That nothing is controlled."""
        return "no policy: every slope is the one that its node was built with"
