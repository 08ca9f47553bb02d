"""SpikingJelly's LIF nodes run through our kernels."""

from typing import Any

from spikingjelly.activation_based import neuron
from torch import nn

from ..neurons import LIFNode, surrogate_shape


def accelerate(model: nn.Module) -> nn.Module:
    """Turn the model's SpikingJelly LIF nodes into ours, in place, with equal results; gives the model.

    Nodes keep their identity, state and hooks, and still need `reset_net`. Nodes of other classes, or with a surrogate
    that our kernels do not know, stay as they are.
    """
    for module in model.modules():
        node: Any = module
        if type(node) is neuron.LIFNode and surrogate_shape(node) is not None:
            node.__class__ = LIFNode
            node.carry_state, node.slope = True, None
    return model
