"""What kernels on a device keep beside their results, without launches of their own: statistics, spikes as bits."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .bits import WORD, are_kept_as_bits
from .path import path

Momentum = float | Tensor  # a tensor () where a number would have to be read from the device
# Of operators that keep: the statistics that they move, and by how much.
STATISTICS = "Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? share"


@dataclass
class Kept:
    """What one call keeps; `words` are there after it, if it `packs`. Statistics are moved in place."""

    packs: bool
    momentum: Momentum = 0.0
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    words: Tensor | None = None

    @property
    def statistics(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """As operators take them."""
        share = self.momentum if isinstance(self.momentum, Tensor) else None
        return self.running_mean, self.running_var, share

    @property
    def options(self) -> dict[str, Any]:
        """The same by name."""
        return {"momentum": 0.0 if isinstance(self.momentum, Tensor) else self.momentum}


def keeps_on(x: Tensor) -> bool:
    """Whether kernels keep anything where x is: not in a compiled graph, whose operators write to nothing."""
    return path(x) == "Triton" and not torch.compiler.is_compiling()


def packs(x: Tensor, fastest: int) -> bool:
    """Whether spikes like x are to be written as bits too; `fastest` of them lie together.

    Eight neighbours make a byte, and bytes fill words; else what is kept is packed by itself.
    """
    return are_kept_as_bits(x) and fastest % 8 == 0 and x.numel() % WORD == 0


def room_for_words(x: Tensor, packs: bool) -> Tensor:
    """As many as the bits of x fill; none if nobody packs."""
    return x.new_empty(x.numel() // WORD if packs else 0, dtype=torch.int64)
