"""Synaptic operations, energy and firing rates, counted on real inputs through SpikingJelly's op_counter.

A spike that reaches a synapse is one accumulation (AC); a real number that does is one multiply-accumulate (MAC).
The input of a block is a sum of spike trains (0, 1, 2, ...): every spike in the sum counts. Spikes of one height count
like those of height 1, because the height folds into the weights behind them; negative ones count too. An average over
at most 8 spikes (a pooling window of 2 x 2, up to 8 time steps) counts every spike that it was taken over. What is
beyond, such as a mean over all pixels before the head, is multiplied. Batch normalisation folds into the weights and
costs nothing. The first convolution sees real-valued images; an image that stands still passes it once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from spikingjelly.activation_based import functional
from spikingjelly.activation_based.op_counter import (
    DispatchCounterMode,
    MACCounter,
    SynOpCounter,
    is_binary_tensor,
)
from torch import Tensor, nn

from ..compat import AnyBatchNorm
from ..control import is_node, watching
from ..neurons import LIFNode, RateIF
from .operations import CONVOLUTION, PRODUCTS, DenseCounter, Rule, layer_name, own_counts
from .silence import silent_from

MAC_PJ, AC_PJ = 4.6, 0.9
SOURCE = "45 nm, 32-bit floating point (Horowitz, ISSCC 2014)"

_MOST = 8  # spikes of an average; images of more grey levels are real numbers


@dataclass
class Layer:
    """Of one layer, per image: accumulations, multiply-accumulates, those of an ANN, and its node's firing rate."""

    acs: float = 0.0
    macs: float = 0.0
    ann_macs: float = 0.0
    firing_rate: float | None = None


@dataclass(frozen=True)
class Activity:
    """Layers by name in the network's order, measured on `images` images."""

    images: int
    layers: dict[str, Layer]

    @property
    def sops(self) -> float:
        """Synaptic operations per image: accumulations that a spike caused."""
        return sum(layer.acs for layer in self.layers.values())

    @property
    def macs(self) -> float:
        """Multiply-accumulates per image: what spikes did not replace."""
        return sum(layer.macs for layer in self.layers.values())

    @property
    def ann_macs(self) -> float:
        """Multiply-accumulates per image of the same layers as an ANN: dense, and once instead of T times."""
        return sum(layer.ann_macs for layer in self.layers.values())

    @property
    def energy_uj(self) -> float:
        """Microjoules per image."""
        return (AC_PJ * self.sops + MAC_PJ * self.macs) * 1e-6

    @property
    def ann_energy_uj(self) -> float:
        """Microjoules per image of the same layers as an ANN."""
        return MAC_PJ * self.ann_macs * 1e-6

    @property
    def silent_from(self) -> str | None:
        """The first layer from which on nothing fires, None where the last one does."""
        rates = {name: layer.firing_rate for name, layer in self.layers.items()}
        return silent_from({name: rate for name, rate in rates.items() if rate is not None})

    @property
    def is_silent(self) -> bool:
        """Does nothing that fires reach the output? Layers that are silent may have a shortcut around them."""
        synapses = [layer for layer in self.layers.values() if layer.ann_macs]
        return self.silent_from is not None and bool(synapses) and not (synapses[-1].acs or synapses[-1].macs)


@torch.no_grad()
def measure(network: nn.Module, batches: Iterable[Tensor]) -> Activity:
    """Count over batches of images (B, C, H, W), or of sequences with time first (T, B, ...)."""
    synops, macs = spike_counters(_heights(network))
    ann, rates = DenseCounter(), _Rates(network)
    images = 0
    network.eval()
    for batch in batches:
        still = batch.ndim == 4
        images += batch.shape[0 if still else 1]
        functional.reset_net(network)
        with watching(rates.looks()), DispatchCounterMode([synops, macs]):
            network(batch)
        functional.reset_net(network)
        with _one_step(network), DispatchCounterMode([ann]):
            network(batch.unsqueeze(0) if still else batch[:1])
    layers: dict[str, Layer] = {}
    for field, counter in (("acs", synops), ("macs", macs), ("ann_macs", ann)):
        for name, count in own_counts(counter, network).items():
            setattr(layers.setdefault(name, Layer()), field, count / images)
    for name, rate in rates.by_node().items():
        layers.setdefault(layer_name(network, name), Layer()).firing_rate = rate
    order = [layer_name(network, name) for name, _ in network.named_modules()]
    return Activity(images, dict(sorted(layers.items(), key=lambda item: order.index(item[0]))))


@contextmanager
def _one_step(network: nn.Module) -> Iterator[None]:
    """Inside, nodes that have a threshold per time step have that of the first only."""
    nodes: list[Any] = [m for m in network.modules() if isinstance(m, LIFNode)]
    held = [(node, node.threshold) for node in nodes if node.threshold is not None]
    for node, threshold in held:
        node.set_constants(threshold.detach().flatten()[0], node.time_constant)
    try:
        yield
    finally:
        for node, threshold in held:
            node.set_constants(threshold, node.time_constant)


def spike_counters(heights: Sequence[float] = (1.0,)) -> tuple[SynOpCounter, MACCounter]:
    """SpikingJelly's counters, taught what spikes of these heights, their sums and averages are, and normalisation."""
    heights = sorted(set(heights), reverse=True)  # one spike of height 8, not eight of height 1
    synops, macs = SynOpCounter(), MACCounter(extra_ignore_modules=[AnyBatchNorm])
    for operation, position in PRODUCTS.items():
        spikes = partial(_spikes, heights=heights, position=position)
        synops.rules[operation] = _or_summed(synops.rules[operation], _product_acs, spikes)
        macs.rules[operation] = _unless_summed(macs.rules[operation], spikes)
    spikes = partial(_input_spikes, heights=heights)
    synops.rules[CONVOLUTION] = _or_summed(synops.rules[CONVOLUTION], _convolution_acs, spikes)
    macs.rules[CONVOLUTION] = _unless_summed(macs.rules[CONVOLUTION], spikes)
    return synops, macs


def _heights(network: nn.Module) -> list[float]:
    """Of the spikes that the network's nodes give."""
    return [1.0, *(float(node.threshold) for node in network.modules() if isinstance(node, RateIF))]


@dataclass(frozen=True)
class _Summed:
    """How many spikes each number of an operand is made of, and whether the operand comes first."""

    counts: Tensor
    is_first: bool


Spikes = Callable[[Any], _Summed | None]


def _or_summed(default: Rule, acs: Callable[..., int], spikes: Spikes) -> Rule:
    """SpikingJelly's count, which knows 0 and 1 only, or ours where one operand is made of other spikes."""

    def rule(args: Any, kwargs: Any, out: Any) -> int:
        summed = spikes(args)
        return default(args, kwargs, out) if summed is None else acs(args, summed)

    return rule


def _unless_summed(default: Rule, spikes: Spikes) -> Rule:
    def rule(args: Any, kwargs: Any, out: Any) -> int:
        return default(args, kwargs, out) if spikes(args) is None else 0

    return rule


def _spikes(args: Any, *, heights: Sequence[float], position: int) -> _Summed | None:
    """Spikes meet weights. Where both operands are whole numbers, or one is binary, nothing is summed."""
    x, y = args[position : position + 2]
    if is_binary_tensor(x) or is_binary_tensor(y) or (_is_whole(x) and _is_whole(y)):
        return None
    if _is_whole(y):
        return _Summed(y, False)
    counts = _counts(x, heights)  # of the first only: weights may have few values as well
    return None if counts is None else _Summed(counts, True)


def _input_spikes(args: Any, *, heights: Sequence[float]) -> _Summed | None:
    """Of a convolution, whose weights are never spikes."""
    summed = _spikes(args, heights=heights, position=0)
    return summed if summed is not None and summed.is_first else None


def _is_whole(x: Tensor) -> bool:
    return bool((x.ge(0) & x.eq(x.round())).all())


def _counts(x: Tensor, heights: Sequence[float]) -> Tensor | None:
    """Spikes in each number if all are sums of spikes of one height, signed spikes or averages of a few; else None."""
    sizes, is_signed = x.abs().double(), bool(x.lt(0).any())
    largest = sizes.max()
    for averaged in range(1, _MOST + 1):
        for height in heights:
            within = largest <= height * (1 + 1e-6)
            # The largest alone tells most heights apart from that of x.
            if (within or (averaged == 1 and not is_signed)) and _are_near_whole(largest * (averaged / height)):
                counts = sizes * (averaged / height)
                if _are_near_whole(counts):
                    return counts.round()
    return None


def _are_near_whole(x: Tensor) -> bool:
    """Up to what rounding in float32 leaves."""
    return bool(((x - x.round()).abs() <= 1e-5 * x).all())


def _product_acs(args: Any, summed: _Summed) -> int:
    x, y = args[-2:]  # the operands come last in all four products
    spikes = int(summed.counts.double().sum())
    return spikes * (y.shape[-1] if summed.is_first else x.shape[-2])


def _convolution_acs(args: Any, summed: _Summed) -> int:
    """Spikes times the outputs that each reaches: fewer at the border than inside."""
    _, weight, _, stride, padding, dilation, _, output_padding, groups = args[:9]
    # One output channel per group stands for all of them.
    ones = torch.ones_like(weight[:groups], dtype=torch.float64)
    counts = summed.counts.double()
    reached = torch.convolution(counts, ones, None, stride, padding, dilation, False, output_padding, groups)
    return int(reached.sum()) * (weight.shape[0] // groups)


class _Rates:
    """Counts the spikes of every node."""

    def __init__(self, network: nn.Module) -> None:
        self._nodes = {name: module for name, module in network.named_modules() if is_node(module)}
        self._spikes = dict.fromkeys(self._nodes, 0)
        self._places = dict.fromkeys(self._nodes, 0)

    def looks(self) -> Iterator[tuple[nn.Module, Callable[[Tensor], None]]]:
        """What counts at each node."""
        for name, node in self._nodes.items():
            yield node, partial(self._count, name)

    def _count(self, name: str, output: Tensor) -> None:
        self._spikes[name] += int(output.count_nonzero())
        self._places[name] += output.numel()

    def by_node(self) -> dict[str, float]:
        """Share of places that spiked."""
        return {name: self._spikes[name] / places if places else math.nan for name, places in self._places.items()}
