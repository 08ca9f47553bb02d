"""Calls of the operators with a neuron that between them need every branch of its kernels, for `variants`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One call; `each`: slopes of neurons; `asks`: for tensors as constants, all sums, and moments."""

    dtype: torch.dtype
    times: int
    shape: str = "Sigmoid"
    reset: float | None = 0.0
    decay_input: bool = True
    detach_reset: bool = True
    each: bool = False
    asks: bool = False

    def __str__(self) -> str:
        words = [str(self.dtype).removeprefix("torch."), f"T = {self.times}", self.shape]
        words += [word for word, holds in self._words.items() if holds]
        return ", ".join(words)

    @property
    def _words(self) -> dict[str, bool]:
        return {
            "soft reset": self.reset is None,
            "input undecayed": not self.decay_input,
            "reset differentiated": not self.detach_reset,
            "slopes of neurons": self.each,
            "all sums": self.asks,
        }

    @property
    def _membrane(self) -> dict[str, Any]:
        numbers = {"tau": 2.0, "threshold": 1.0, "reset": self.reset, "decay_input": self.decay_input}
        tensors = {"thresholds": _empty(self.times), "time_constant": _empty()} if self.asks else {}
        return numbers | tensors

    @property
    def forward(self) -> dict[str, Any]:
        """Options of the forward operator."""
        return self._membrane | {"near": 0.5 if self.asks else None}

    @property
    def backward(self) -> dict[str, Any]:
        """Options of the backward operator."""
        asked = dict.fromkeys(["wants_slope", "wants_constants", "wants_squares"], self.asks)
        return self._membrane | asked | {"shape": self.shape, "detach_reset": self.detach_reset}

    def slope(self, channels: int) -> Tensor:
        """One for all, or one for each channel."""
        return _empty(1, 1, channels, 1) if self.each else _empty()


def _empty(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.float64, device="meta")


_SINGLE, _HALF, _BRAIN = torch.float32, torch.float16, torch.bfloat16
CASES = [
    *(Case(dtype, 4) for dtype in (_SINGLE, _HALF, _BRAIN)),
    *(Case(dtype, times) for dtype in (_SINGLE, _HALF) for times in (1, 8, 32)),
    Case(_SINGLE, 4, "ATan", reset=None, decay_input=False),
    Case(_SINGLE, 4, "Rect", reset=None, detach_reset=False, asks=True),
    Case(_HALF, 4, "PiecewiseQuadratic", decay_input=False, detach_reset=False, each=True),
    Case(_HALF, 8, "ATan", reset=None, detach_reset=False, each=True, asks=True),
    Case(_BRAIN, 32, decay_input=False, detach_reset=False, asks=True),
]
