"""What a policy writes: puts slopes where nodes look for them, and takes them away again."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import copy_each
from ..neurons import DietLIF, LIFNode, RateIF, STDBNode, surrogate_shape
from ..surrogate import SHAPES, ChannelSlopes, MixedSurrogate, Slope, TensorSurrogate, WrittenSlope


def is_node(module: nn.Module) -> bool:
    """Does the module fire through a surrogate that has a slope?"""
    return hasattr(getattr(module, "surrogate_function", None), "alpha")


def nodes_of(module: nn.Module) -> list[nn.Module]:
    """All spiking nodes with a slope in a module, in order."""
    return [m for m in module.modules() if is_node(m)]


def require_open(nodes: Iterable[nn.Module], what: str) -> None:
    """Raise unless every node shows its insides and takes other constants: ours, with a surrogate that we know."""
    for node in nodes:
        kind = f"{type(node).__module__.partition('.')[0]}'s {type(node).__name__}"
        forward = getattr(type(node), "multi_step_functional_forward", None)
        if not isinstance(node, LIFNode) or forward is not LIFNode.multi_step_functional_forward:
            raise ValueError(
                f"{kind} keeps {what} to itself; build the network with sage_snn.LIFNode, "
                "or call sage_snn.deploy.accelerate(model), which turns SpikingJelly's LIF nodes into ours"
            )
        if surrogate_shape(node) is None:
            surrogate = type(node.surrogate_function).__name__
            raise ValueError(f"a node with {surrogate} keeps {what} to itself; use one of {', '.join(SHAPES)}")


class NodeSlopes:
    """The slopes of a set of nodes, each kept the way its node can: a tensor in ours, a float in SpikingJelly's."""

    def __init__(self, nodes: Iterable[nn.Module]) -> None:
        self.nodes = list(nodes)
        for node in self.nodes:
            if not is_node(node):
                raise ValueError(
                    f"{type(node).__name__} has no surrogate_function.alpha to control; "
                    "use a SpikingJelly node or sage_snn.neurons.LIFNode"
                )
        self._originals = [_original(node.surrogate_function) for node in self.nodes]
        self.bases = [float(original.alpha) for original in self._originals]

    @property
    def takes_tensor(self) -> list[bool]:
        """Which nodes keep their slope in a tensor, so that writing it needs no host synchronisation."""
        return [isinstance(node, LIFNode) and surrogate_shape(node) is not None for node in self.nodes]

    def paths(self) -> list[str]:
        """How each node keeps its slope and through which code it fires, in words."""
        return [_path(node, ours) for node, ours in zip(self.nodes, self.takes_tensor, strict=True)]

    def hold(self, *, live: bool, device: torch.device) -> None:
        """Give every node a slope of its own that can be written."""
        for node, base, ours in zip(self.nodes, self.bases, self.takes_tensor, strict=True):
            if ours:
                node.slope = slope = WrittenSlope(base, live=live, device=device)  # type: ignore[assignment]
                if isinstance(node, LIFNode) and node.own_slope is not None and node.own_slope.tensor.device == device:
                    slope.tensor = node.own_slope.tensor  # which a graph that was captured before reads
            else:  # SpikingJelly's nodes share one surrogate object: a copy each, or all would follow
                node.surrogate_function = _instead(node.surrogate_function, copy.deepcopy(node.surrogate_function))

    def refine(self, slopes: Mapping[int, Slope]) -> None:
        """Give some nodes, by their indices, a slope that is finer than one number."""
        for index in slopes:
            if not self.takes_tensor[index]:
                kind = f"{type(self.nodes[index]).__name__} of {type(self.nodes[index]).__module__}"
                raise ValueError(
                    f"{kind} keeps its slope as one number; build the network with sage_snn.LIFNode and a surrogate "
                    f"among {', '.join(SHAPES)}, call sage_snn.deploy.accelerate(model), or pass per='group'"
                )
        for index, slope in slopes.items():
            self.nodes[index].slope = slope  # type: ignore[assignment]

    def require_shapes(self, *, every_step: bool) -> None:
        """Raise unless each node's slope can be learnt: a known surrogate, and our node for a slope per time step."""
        for node in self.nodes:
            if surrogate_shape(node) is None:
                kind = type(node.surrogate_function).__name__
                raise ValueError(f"no gradient is defined for the slope of {kind}; use one of {', '.join(SHAPES)}")
            if every_step and not isinstance(node, LIFNode):
                kind = f"{type(node).__name__} of {type(node).__module__}"
                raise ValueError(
                    f"a slope per time step needs sage_snn.neurons.LIFNode in place of {kind}; build the network with "
                    "spiking_neuron=sage_snn.LIFNode, or call sage_snn.deploy.accelerate(model), which turns "
                    "SpikingJelly's LIF nodes into ours"
                )

    def learn(self, slopes: Iterable[Slope]) -> None:
        """Give every node a slope that is computed anew in each forward pass."""
        for node, slope, ours in zip(self.nodes, slopes, self.takes_tensor, strict=True):
            if ours:
                node.slope = slope  # type: ignore[assignment]
            else:
                shape = surrogate_shape(node)
                assert shape is not None
                node.surrogate_function = _instead(node.surrogate_function, TensorSurrogate(shape, slope))

    def replace(self, surrogates: Iterable[TensorSurrogate]) -> None:
        """Give every node another surrogate: none that a kernel knows, so that it runs in a plain loop over time."""
        for node, surrogate in zip(self.nodes, surrogates, strict=True):
            node.surrogate_function = _instead(node.surrogate_function, surrogate.train(node.training))

    def shapes(self) -> list[str]:
        """Of the nodes' own surrogates; `require_shapes` has made sure of them."""
        return [type(original).__name__ for original in self._originals]

    def write(self, values: Tensor | Sequence[Tensor]) -> None:
        """Write one value per node (nodes,), or one per node and time step (nodes, T), which our nodes take.

        Or a tensor for each: () or, to slopes of channels, of several. Our nodes' tensors stay where they are, so that
        a captured graph that reads them follows; only another shape or device needs another tensor.
        """
        held: list[Tensor] = []
        written: list[Tensor] = []
        foreign: list[tuple[Any, Tensor]] = []
        for node, value in zip(self.nodes, values.unbind() if isinstance(values, Tensor) else values, strict=True):
            slope: Any = getattr(node, "slope", None)
            if not isinstance(slope, WrittenSlope):
                foreign.append((node, value))
                continue
            if isinstance(slope, ChannelSlopes):
                value = slope.spread(value)
            if slope.tensor.shape == value.shape and slope.tensor.device == value.device:
                held.append(slope.tensor)
                written.append(value)
            else:
                slope.tensor = value.clone()  # not a view of what may be written next
        if held:
            copy_each(held, written)
        if foreign:
            numbers = torch.stack([value for _, value in foreign]).tolist()  # a host synchronisation, on a GPU
            for (node, _), value in zip(foreign, numbers, strict=True):
                node.surrogate_function.alpha = value

    def restore(self) -> None:
        """Give every node its own surrogate back, untouched."""
        for node, original in zip(self.nodes, self._originals, strict=True):
            if isinstance(node, LIFNode):
                node.slope = None
                if node.own_slope is not None:
                    node.own_slope.rest()
            node.surrogate_function = original  # pyright: ignore[reportAttributeAccessIssue]


def _instead(original: Any, held: Any) -> Any:
    """The surrogate that a policy puts in the place of the original, which copies of the model keep with it."""
    held.__dict__["_original"] = original  # not as a submodule
    return held


def _original(surrogate: Any) -> Any:
    return surrogate.__dict__.get("_original", surrogate)


def _path(node: nn.Module, ours: bool) -> str:
    if ours:
        return "of ours, slope in a tensor"
    if isinstance(node.surrogate_function, MixedSurrogate):
        return "with spikes and smooth values mixed in training: a plain loop over time, for which there is no kernel"
    in_tensor = isinstance(node.surrogate_function, TensorSurrogate)
    if isinstance(node, RateIF | DietLIF | STDBNode):
        kept = "in a tensor" if in_tensor else "a number"
        return f"of ours, {type(node).__name__}, slope {kept}: a plain loop over time, for which there is no kernel"
    if in_tensor:
        return "of SpikingJelly, slope in a tensor: its loop over time, not its fast path, which takes numbers only"
    if surrogate_shape(node) is None:
        kind = type(node.surrogate_function).__name__
        return f"with {kind}, slope a number: SpikingJelly's loop over time, not its fast path, which lacks that shape"
    return "of SpikingJelly, slope a number in a surrogate of their own, its fast path where it has one"
