"""SpikingJelly's LIF nodes run through our kernels."""

from typing import Any

from spikingjelly.activation_based import neuron
from torch import nn

from ..neurons import LIFNode, surrogate_shape


def accelerate(model: nn.Module) -> nn.Module:
    """Turn the model's SpikingJelly LIF nodes into ours, in place, with equal results; gives the model.

    Nodes keep their identity, state and hooks, and still need `reset_net`. Nodes of other classes, or with a surrogate
    that our kernels do not know, stay as they are. In half precision our membranes are float32, SpikingJelly's are not:
    there spikes may differ at the threshold.

    Args:
        model: a network of SpikingJelly's nodes.
    """
    plain: list[Any] = [m for m in model.modules() if type(m) is neuron.LIFNode and surrogate_shape(m) is not None]
    for node in plain:
        node.__class__ = LIFNode
        node.equip(carry_state=True)
    return model
