"""SpikingJelly's LIF nodes run through our kernels, and the synapses between them driven by events."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spikingjelly.activation_based import layer, neuron
from torch import Tensor, nn

from ..kernels.events import event_map
from ..layers import SpikeConv, SpikeLinear
from ..neurons import LIFNode, surrogate_shape


class JellyConv(SpikeConv, layer.Conv2d):
    """SpikingJelly's Conv2d, by events where that pays."""


class SpikeMap(nn.Conv1d):
    """nn.Conv1d: of width 1 a matrix product, by events where that pays, if channels lie last."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._is_map or input.ndim != 3 or input.is_contiguous():
            return super()._conv_forward(input, weight, bias)
        return event_map(input.transpose(1, 2), weight.squeeze(-1), bias).transpose(1, 2)

    @property
    def _is_map(self) -> bool:
        return (self.kernel_size, self.stride, self.padding, self.groups) == ((1,), (1,), (0,), 1)


class JellyMap(SpikeMap, layer.Conv1d):
    """SpikingJelly's Conv1d, by events where that pays."""


class JellyLinear(SpikeLinear, layer.Linear):
    """SpikingJelly's Linear, by events where that pays."""


_SYNAPSES: dict[Any, Any] = {
    nn.Conv2d: SpikeConv,
    layer.Conv2d: JellyConv,
    nn.Conv1d: SpikeMap,
    layer.Conv1d: JellyMap,
    nn.Linear: SpikeLinear,
    layer.Linear: JellyLinear,
}
_PLAIN = {ours: theirs for theirs, ours in _SYNAPSES.items()}


def accelerate(model: nn.Module) -> nn.Module:
    """Turn the model's SpikingJelly LIF nodes into ours, in place, with equal results; gives the model.

    Nodes keep their identity, state and hooks, and still need `reset_net`. Nodes of other classes, or with a surrogate
    that our kernels do not know, stay as they are. In half precision our membranes are float32, SpikingJelly's are not:
    there spikes may differ at the threshold. Convolutions of 3 x 3 and of width 1, and linear layers, walk only what is
    not zero in their input, if that is little and channels lie last in memory:
    `model.to(memory_format=torch.channels_last)`. Those of width 1 are matrix products then, which round otherwise.

    Args:
        model: a network of SpikingJelly's nodes.
    """
    plain: list[Any] = [m for m in model.modules() if type(m) is neuron.LIFNode and surrogate_shape(m) is not None]
    for node in plain:
        node.__class__ = LIFNode
        node.equip(carry_state=True)
    for module in model.modules():
        module.__class__ = _SYNAPSES.get(type(module), type(module))
    return model


@contextmanager
def plain_synapses(model: nn.Module) -> Iterator[nn.Module]:
    """Inside, synapses are of the classes that they had before `accelerate`: some look them up by exact type."""
    changed = [module for module in model.modules() if type(module) in _PLAIN]
    kinds = [type(module) for module in changed]
    for module in changed:
        module.__class__ = _PLAIN[type(module)]
    try:
        yield model
    finally:
        for module, kind in zip(changed, kinds, strict=True):
            module.__class__ = kind
