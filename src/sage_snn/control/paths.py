"""Which code runs: what is fused in a model, and why the rest is not."""

from collections import Counter
from typing import Any

from torch import nn

from ..kernels import native


def code_paths(model: nn.Module) -> list[str]:
    """Lines for people: the state of the kernels, and how many norm-and-neuron pairs run in one of them."""
    pairs: list[Any] = [m for m in model.modules() if hasattr(m, "why_not_fused") and hasattr(m, "norm")]
    reasons = Counter(pair.why_not_fused() for pair in pairs)
    lines = [f"kernels {native.status()}"]
    if pairs:
        lines.append(f"{reasons.pop(None, 0)} of {len(pairs)} pairs of BatchNorm and neuron fused")
    return lines + [f"{count} not fused: {reason}" for reason, count in reasons.items()]
