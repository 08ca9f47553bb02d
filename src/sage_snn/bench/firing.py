"""How often the neurons of a measured network fire: a network brought to a stated rate, and the rates of its parts.

Products that leave out zeros are as fast as their input is sparse, so a time says nothing without its rate. Weights as
they are drawn leave most neurons silent in evaluation.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..control import copied, is_node, watching
from .contestants import ResNetSize, Size, random_data
from .peers import OWN, peers

# Of every neuron and time step. Products cost what their input is: at this rate 11 % of the numbers that synapses of
# the stem are given are not zero, and 15 % in the blocks, a little more than in a Spikformer trained on CIFAR-10. It
# fires at 3 to 6 % (docs/performance.md), but its pooled spikes and residual sums lie closer together.
RATE = 0.04
_NARROWED = 14  # times that the interval of a shift is halved
_LEAST = 8  # images that a rate is set on


@torch.no_grad()
def bring_to(rate: float, network: nn.Module, images: Tensor) -> None:
    """Make every neuron behind a normalisation fire at this rate on these images, in place; in training mode.

    Running statistics become those of the images, and every normalisation's weight 1 and bias one number: the shift of
    the currents that gives the rate. So a pass fires alike in training and in evaluation.
    """
    units = [unit for unit in network.modules() if hasattr(unit, "norm") and hasattr(unit, "lif")]
    norms: list[Any] = [norm for norm in network.modules() if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_parameters()
        norm.momentum = 1.0
    hooks = [unit.lif.register_forward_pre_hook(partial(_shift, unit.norm, rate)) for unit in units]  # type: ignore
    network.train()(images)
    for hook in hooks:
        hook.remove()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _shift(norm: nn.BatchNorm2d, rate: float, node: nn.Module, currents: tuple[Tensor]) -> tuple[Tensor]:
    """Find the shift by halving an interval, note it in the normalisation, and fire with it."""
    low, high = -8.0, 8.0
    for _ in range(_NARROWED):
        middle = (low + high) / 2
        fires = node.forward(currents[0] + middle).mean() > rate
        low, high = (low, middle) if fires else (middle, high)
    norm.bias.fill_(low)  # where nothing but silence comes in, that is what goes on
    return (currents[0] + low,)


@torch.no_grad()
def rates_of(network: nn.Module, images: Tensor) -> dict[str, float]:
    """Share of neurons, images and time steps that spike, of each part: a Spikformer's stem and blocks.

    Beside it, as "into ...", the share of numbers other than zero that synapses of the part are given: spikes that were
    pooled or added up are denser. The first layer, which sees images, is left out. In the network's mode, on a copy.
    """
    (network,) = copied(network)
    counts: dict[str, list[int]] = {}

    def count(part: str, values: Tensor) -> None:
        found = counts.setdefault(part, [0, 0])
        found[0] += int(values.count_nonzero())
        found[1] += values.numel()

    parts = [(name.partition(".")[0], module) for name, module in network.named_modules()]
    synapses = [(part, module) for part, module in parts if isinstance(module, nn.Conv1d | nn.Conv2d)][1:]
    for part, synapse in synapses:
        synapse.register_forward_pre_hook(lambda _, x, part=part: count(f"into {part}", x[0]))
    with watching((node, partial(count, part)) for part, node in parts if is_node(node)):
        network(images)
    shares = {part: found / of for part, (found, of) in counts.items()}
    return dict(sorted(shares.items(), key=lambda share: share[0].startswith("into ")))


@dataclass(frozen=True)
class Stated:
    """A contest whose networks have been brought to a stated rate."""

    size: Size | ResNetSize
    rate: float = RATE

    def __str__(self) -> str:
        return str(self.size)

    @property
    def batch(self) -> int:
        """Images."""
        return self.size.batch

    @property
    def network(self) -> str:
        """Its name, without the batch."""
        return self.size.network

    def data(self) -> tuple[Tensor, Tensor]:
        """Random images and labels."""
        return self.size.data()

    def ours(self) -> nn.Module:
        """Our network."""
        return copied(self._brought)[0]

    def theirs(self) -> nn.Module:
        """SpikingJelly's, with the same weights."""
        return peers(self._brought)[OWN]()

    @cached_property
    def _brought(self) -> nn.Module:
        network = self.size.ours()
        bring_to(self.rate, network, random_data(max(_LEAST, self.batch), self.size.image)[0])
        return network
