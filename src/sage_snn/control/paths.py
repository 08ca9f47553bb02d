"""Which code runs: what is fused in a model, and why the rest is not."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.path import code_on


def code_paths(model: nn.Module) -> list[str]:
    """Lines for people: the kernels where the model is, and how many norm-and-neuron pairs run in one of them."""
    pairs: list[Any] = [m for m in model.modules() if hasattr(m, "why_not_fused") and hasattr(m, "norm")]
    reasons = Counter(pair.why_not_fused(_example(pair)) for pair in pairs)
    lines = [f"kernels {code_on(_example(model))}"]
    if pairs:
        lines.append(f"{reasons.pop(None, 0)} of {len(pairs)} pairs of BatchNorm and neuron fused")
    return lines + [f"{count} not fused: {reason}" for reason, count in reasons.items()]


def _example(module: nn.Module) -> Tensor:
    """A tensor where the module's parameters are, in their precision."""
    return next((p.detach() for p in module.parameters() if p.is_floating_point()), torch.empty(0))
