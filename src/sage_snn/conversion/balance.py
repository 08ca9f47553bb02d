"""Thresholds from data: so high that a layer hardly ever receives more than it can pass on (Diehl et al., 2015)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..control import unwrapped
from ..models.resnet import BasicBlock
from ..neurons import DietLIF, RateIF, STDBNode

_MANY = 2**24  # torch.quantile takes no more values


@torch.no_grad()
def balance_thresholds(
    network: nn.Module,
    images: Tensor | None,
    *,
    percentile: float = 100.0,
    factor: float = 1.0,
    in_turn: bool = False,
    averaged: bool = False,
    time_steps: int | None = None,
) -> dict[str, float]:
    """Set the `threshold` of every neuron, layer by layer, and give them by name.

    Each becomes the largest current of a time step that arrives at its layer, or that percentile of the currents, when
    the layers before it fire with theirs; then all are multiplied by `factor`. One pass in eval mode over the
    images, with `time_steps` in place of the network's own.

    Factors of all layers act on the last one: 0.3 on each of nineteen leaves no rate below the highest. `in_turn`
    multiplies each layer before the next is looked at, which so is balanced for the spikes that it will receive.
    `averaged` looks at each neuron's mean current over time: spikes that meet in one step raise the largest current far
    above it, layer after layer, and a neuron that keeps what is left over (`RateIF`) loses nothing by them.

    Where spikes are 1 high, a threshold also scales what the layers after it receive. In a chain nothing has to be
    done about that; in a residual block the second convolution is multiplied by the threshold of the first neuron,
    so that what it adds to the shortcut is in the shortcut's measure.

    Args:
        network: of `RateIF` neurons, changed in place.
        images: to look at, (B, C, H, W).
        percentile: of the currents, 100: the largest.
        factor: times that.
        in_turn: layer after layer.
        averaged: over time first.
        time_steps: in place of the network's T.
    """
    kinds = (DietLIF, RateIF, STDBNode)
    nodes = {name: node for name, node in unwrapped(network).named_modules() if isinstance(node, kinds)}
    if not nodes:
        raise ValueError(
            f"{type(network).__name__} has no neuron whose threshold could be balanced; "
            "build it with RateIF, DietLIF or STDBNode"
        )
    if images is None or not len(images):
        raise ValueError("balancing needs images to see currents on: pass a batch of training images")
    at_once, at_last = (factor, 1.0) if in_turn else (1.0, factor)

    def level(currents: Tensor) -> float:
        return at_once * _level(currents.mean(0) if averaged else currents, percentile)

    with _in_eval_mode(network, time_steps), _setting(nodes, level, _scaled_by(network)):
        network(images)
    for node in nodes.values():
        node.threshold.mul_(at_last)
    return {name: float(node.threshold) for name, node in nodes.items()}


def _level(currents: Tensor, percentile: float) -> float:
    """The percentile of all currents; of so many of them, spread evenly, as torch can sort."""
    flat = currents.flatten()
    if percentile == 100:
        return float(flat.max())
    return float(torch.quantile(flat[:: -(-flat.numel() // _MANY)].float(), percentile / 100))


def _scaled_by(network: nn.Module) -> dict[nn.Module, Tensor]:
    """First neuron of each residual block whose spikes are 1 high -> weights of its second convolution."""
    blocks: list[Any] = [module for module in network.modules() if isinstance(module, BasicBlock)]
    return {b.first.lif: b.second.synapse.weight for b in blocks if not isinstance(b.first.lif, RateIF)}


@contextmanager
def _setting(
    nodes: dict[str, Any], threshold: Callable[[Tensor], float], scaled: dict[nn.Module, Tensor]
) -> Iterator[None]:
    """Inside, a node gets its threshold when the currents arrive that decide it."""

    def balance(name: str, node: Any, args: tuple[Tensor, ...]) -> None:
        level = threshold(args[0])
        if not level > 0:
            raise ValueError(
                f"no current above zero arrives at {name} within {len(args[0])} steps, so it has no threshold; "
                "balance with more time_steps, or train the weights first"
            )
        node.threshold.fill_(level)
        if node in scaled:
            scaled[node].mul_(level)

    handles = [
        node.register_forward_pre_hook(lambda node, args, name=name: balance(name, node, args))
        for name, node in nodes.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _in_eval_mode(network: Any, time_steps: int | None) -> Iterator[None]:
    training, own = network.training, getattr(network, "time_steps", None)
    network.eval()
    try:
        if time_steps is not None:
            network.time_steps = time_steps
        yield
    finally:
        network.train(training)
        if own is not None:
            network.time_steps = own
