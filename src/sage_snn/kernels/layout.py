"""Neurons in the order in which they lie in memory: they do not meet, so any will do, the same for all tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .calls import inverse, memory_order


@dataclass(frozen=True)
class Layout:
    """The order in memory of the axes of a membrane (...), from the slowest to the fastest."""

    order: list[int]

    @classmethod
    def of(cls, currents: Tensor) -> "Layout":
        """That of currents (T, ...)."""
        return cls([axis - 1 for axis in memory_order(currents) if axis])

    def flat(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Currents (T, ...) or a membrane (...), contiguous in this order."""
        steps = tensor.ndim - len(self.order)
        return tensor.detach().to(dtype).permute(*range(steps), *(axis + steps for axis in self.order)).contiguous()

    def back(self, tensor: Tensor) -> Tensor:
        """The axes of what was made flat in their own order."""
        steps = tensor.ndim - len(self.order)
        return tensor.permute(*range(steps), *(axis + steps for axis in inverse(self.order)))

    def start(self, v: Tensor) -> tuple[Tensor, int]:
        """The membrane to start from, and the distance of its values: 0 if all are one."""
        return (v, 0) if not any(v.stride()) else (self.flat(v, v.dtype), 1)
