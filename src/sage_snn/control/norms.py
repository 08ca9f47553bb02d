"""Which normalisation leads to which node, by structure."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import AnyBatchNorm
from .target import is_node


def find_norms(model: nn.Module) -> dict[nn.Module, Any]:
    """The BatchNorm whose output a node fires on, for each node that has one directly before it.

    Directly before: the part in front of it in the same module, or the last part of that (`bn1` and `sn1`, a
    `downsample` that ends with one and its `downsample_sn`, `norm` and `lif`).
    """
    return {node: norm for parent in model.modules() for node, norm in _pairs(parent)}


def gain_of(norm: Any) -> Tensor:
    """How large what leaves a normalisation is: the mean over channels of |weight|, times its own factor if any."""
    size = torch.ones(()) if norm.weight is None else norm.weight.detach().abs().mean()
    return size * getattr(norm, "factor", 1.0)


def _pairs(parent: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    for before, node in pairwise(parent.children()):
        *_, last = before.modules()
        if is_node(node) and isinstance(last, AnyBatchNorm):
            yield node, last
