"""Products and convolutions as torch is asked for them: what each costs by its shape, and in which layer it was."""

from collections.abc import Callable
from typing import Any

import torch
from spikingjelly.activation_based.op_counter import BaseCounter
from torch import nn

from ..control import is_node

Rule = Callable[[Any, Any, Any], int]
_aten = torch.ops.aten
# Position of the first operand of each product; the second follows it.
PRODUCTS = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1, _aten.baddbmm.default: 1}
CONVOLUTION = _aten.convolution.default
_WHOLE = ("qconv2d_pointwise", "qlinear_pointwise")  # oneDNN's, of int8 weights


class DenseCounter(BaseCounter):
    """Multiply-accumulates of products and convolutions by their shapes alone: all that a dense path does."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = {operation: _dense_product(position) for operation, position in PRODUCTS.items()}
        self.rules[CONVOLUTION] = lambda args, _kwargs, out: out.numel() * args[1][0].numel()
        for name in _WHOLE:
            if hasattr(torch.ops.onednn, name):
                self.rules[getattr(torch.ops.onednn, name).default] = _whole


def _dense_product(position: int) -> Rule:
    return lambda args, _kwargs, out: out.numel() * args[position].shape[-1]


def _whole(args: Any, _kwargs: Any, out: Any) -> int:
    """Packed weights keep their number, whatever their shape; there are as many scales as output channels."""
    packed, scales = args[3:5]
    return out.numel() * (packed.numel() // scales.numel())


def own_counts(counter: BaseCounter, network: nn.Module) -> dict[str, float]:
    """Layer -> what was counted in it and in none of its children; scopes are paths below the network's class name."""
    root = type(network).__name__
    totals = {scope: sum(counts.values()) for scope, counts in counter.get_counts().items() if scope != "Global"}
    own = dict(totals)
    for scope, total in totals.items():
        # The next scope around this one; a ModuleList between them is never called and has none.
        around = [other for other in totals if scope.startswith(f"{other}.")]
        if around:
            own[max(around, key=len)] -= total
    layers: dict[str, float] = {}
    for scope, count in own.items():
        name = layer_name(network, scope.removeprefix(root).removeprefix("."))
        layers[name] = layers.get(name, 0.0) + count
    return {name: count for name, count in layers.items() if count}


def layer_name(network: nn.Module, name: str) -> str:
    """A synapse and its node stand together under the module that holds both: blocks.0.mlp.first."""
    module = network.get_submodule(name)
    is_leaf = is_node(module) or not any(module.children())
    return (name.rpartition(".")[0] or name) if is_leaf else name
