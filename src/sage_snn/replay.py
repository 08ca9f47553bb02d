"""Membranes for passes that activation checkpointing runs again inside backward."""

from collections import deque
from typing import Any

import torch

from .compat import checkpointed_region, is_in_backward

MOST = 256  # passes that are remembered: looks without gradients that nobody resets after must not fill the memory


class Starts:
    """What the passes of a node that carries state began with, so that a replay begins with the same.

    Replays come in the reverse order of the passes. Under the reentrant kind a pass cannot be told from a mere look
    without gradients, and its replay not from another's: there every call counts as a region of its own.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all passes: the node was reset."""
        self._passes: deque[tuple[object | None, Any]] = deque(maxlen=MOST)
        self._replay: object | None = None
        self._ahead: list[Any] = []  # the state that training goes on from when the replays are over

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied or unpickled node has no passes to replay."""
        return Starts, ()

    def begin(self, v: Any, *, training: bool, every_step: bool) -> Any:
        """The membrane that a call begins with, given the one that the last call left."""
        region = checkpointed_region()
        if is_in_backward():
            return self._again(v, region, every_step)
        v, self._replay = (self._ahead.pop() if self._ahead else v), None
        if region is None and training and not torch.is_grad_enabled():
            self._passes.append((None, v))
        elif region is not None and (not self._passes or self._passes[-1][0] is not region):
            self._passes.append((region, v))
        return v

    def _again(self, v: Any, region: object | None, every_step: bool) -> Any:
        if not self._passes and region is self._replay:
            return v
        if region is None and every_step:
            raise RuntimeError(
                "reentrant activation checkpointing around nodes that run step by step cannot be replayed from the "
                "right membranes; pass use_reentrant=False, or use step_mode='m'"
            )
        if not self._ahead:
            self._ahead.append(v)
        if region is None or region is not self._replay:
            self._replay = region
            return self._passes.pop()[1] if self._passes else v
        return v
