"""The network of a run, with its weights, on test images of its data."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..control import copied, nodes_of
from ..models.spikformer import Spikformer
from ..neurons.lif import CONSTANTS
from ..runs import Run, RunError
from .peers import OWN, peers


@dataclass(frozen=True)
class Trained:
    """A contest whose networks have the weights of a run, on so many of its test images or on all there are."""

    run: Run
    images: int

    def __str__(self) -> str:
        network: Any = self._trained
        tokens = math.ceil(network.image_size / 2**network.stem.pooled_stages) ** 2
        return f"{self.network}, batch {self.batch}, T={network.time_steps}, {tokens} tokens"

    @property
    def batch(self) -> int:
        """Images."""
        return len(self._data[0])

    @property
    def network(self) -> str:
        """The run's name and its network's."""
        network: Any = self._trained
        return f"{self.run.name} ({len(network.blocks)}-{network.num_features})"

    def data(self) -> tuple[Tensor, Tensor]:
        """Test images, spread evenly over the set, and their labels."""
        return self._data

    def ours(self) -> nn.Module:
        """The run's network, in training mode."""
        return copied(self._trained)[0]

    def theirs(self) -> nn.Module:
        """SpikingJelly's, with the same weights."""
        return peers(self._trained)[OWN]()

    @cached_property
    def _trained(self) -> nn.Module:
        network = self.run.network()
        if not isinstance(network, Spikformer):
            raise RunError(
                f"{self.run.name} is a {type(network).__name__}, of which SpikingJelly has no twin; "
                "give --run a run of a Spikformer"
            )
        if any(getattr(node, name, None) is not None for node in nodes_of(network) for name in CONSTANTS):
            raise RunError(
                f"the neurons of {self.run.name} have trained constants, which SpikingJelly's have not; "
                "give --run a run without the policy learnable_constants"
            )
        return network.train().to(torch.get_default_device())

    @cached_property
    def _data(self) -> tuple[Tensor, Tensor]:
        batches = list(self.run.test_loader(self.images).epoch(0))
        device = torch.get_default_device()
        images, labels, _ = zip(*batches, strict=True)
        return torch.cat(images).to(device), torch.cat(labels).to(device)


def training_batch(run: Run) -> int:
    """Images of a training step: 32 for a width of 64, 16 for 192, 8 for 384, as without a run."""
    return max(8, min(32, 3072 // getattr(run.recipe.model, "dim", 384)))
