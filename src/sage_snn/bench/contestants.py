"""What is measured: a network of ours and SpikingJelly's with the same weights, and a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn

from ..layers import NormLIF, StatelessLIF
from ..models import resnet19, spikformer
from .peers import OWN, peers


class Contest(Protocol):
    """A network and a batch, on both sides."""

    @property
    def batch(self) -> int:
        """Images."""
        ...

    @property
    def network(self) -> str:
        """Its name, without the batch."""
        ...

    def data(self) -> tuple[Tensor, Tensor]:
        """Random images and labels."""
        ...

    def ours(self) -> nn.Module:
        """Our network."""
        ...

    def theirs(self) -> nn.Module:
        """SpikingJelly's."""
        ...


def random_data(batch: int, image: int) -> tuple[Tensor, Tensor]:
    """Images and labels, always the same."""
    generator = torch.Generator("cpu").manual_seed(0)
    images = torch.randn(batch, 3, image, image, generator=generator, device="cpu")
    labels = torch.randint(0, 10, (batch,), generator=generator, device="cpu")
    device = torch.get_default_device()
    return images.to(device), labels.to(device)


@dataclass(frozen=True)
class Size:
    """A network and a batch, 32-pixel images unless said otherwise."""

    dim: int
    heads: int
    batch: int
    depth: int = 4
    time_steps: int = 4
    image: int = 32

    def __str__(self) -> str:
        tokens = (self.image // 4) ** 2
        return f"{self.network}, batch {self.batch}, T={self.time_steps}, {tokens} tokens"

    @property
    def network(self) -> str:
        """Its name, without the batch."""
        return f"{self.depth}-{self.dim}"

    def data(self) -> tuple[Tensor, Tensor]:
        """Random images and labels."""
        return random_data(self.batch, self.image)

    def ours(self) -> nn.Module:
        """Our network."""
        torch.manual_seed(0)
        return spikformer(self.depth, self.dim, self.heads, self.time_steps, image_size=self.image)

    def theirs(self) -> nn.Module:
        """SpikingJelly's, with the same weights: it pools before the neurons, which is the cheaper order."""
        return peers(self.ours())[OWN]()


@dataclass(frozen=True)
class ResNetSize:
    """A network and a batch."""

    width: float
    batch: int
    time_steps: int = 4
    image: int = 32

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}, T={self.time_steps}, {self.image} pixels"

    @property
    def network(self) -> str:
        """Its name, without the batch."""
        return f"ResNet-19 of width {self.width:g}"

    def data(self) -> tuple[Tensor, Tensor]:
        """Random images and labels."""
        return random_data(self.batch, self.image)

    def ours(self) -> nn.Module:
        """Our network."""
        torch.manual_seed(0)
        return resnet19(width=self.width, time_steps=self.time_steps, image_size=self.image)

    def theirs(self) -> nn.Module:
        """The same of SpikingJelly's layers."""
        return peers(self.ours())[OWN]()


def training_step(
    model: nn.Module, size: Contest, after: Callable[[], None] = lambda: None, *, half: bool = False
) -> Callable[[], None]:
    """Forward, loss, backward; `after` is a policy's step, `half` runs the forward pass in bfloat16 by autocast."""
    images, labels = size.data()

    def step() -> None:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
            logits = model(images)
            logits = logits.mean(0) if logits.ndim == 3 else logits
        F.cross_entropy(logits.float(), labels).backward()
        model.zero_grad()
        after()
        functional.reset_net(model)

    return step


def inference(model: nn.Module, size: Contest) -> Callable[[], None]:
    """A forward pass without gradients."""
    images, _ = size.data()

    @torch.no_grad()
    def run() -> None:
        model(images)
        functional.reset_net(model)

    return run


@dataclass(frozen=True)
class Unit:
    """Batch normalisation and LIF alone, on (T, B, C, N)."""

    time_steps: int
    batch: int
    channels: int
    tokens: int

    def __str__(self) -> str:
        return f"({self.time_steps}, {self.batch}, {self.channels}, {self.tokens})"

    def ours(self) -> nn.Module:
        """The pair as it stands in our networks."""
        lif = StatelessLIF(tau=2.0, detach_reset=True, step_mode="m")
        return NormLIF(nn.Identity(), nn.BatchNorm1d(self.channels), lif)

    def theirs(self) -> nn.Module:
        """The pair as SpikingJelly's Spikformer has it."""
        norm = layer.SeqToANNContainer(nn.BatchNorm1d(self.channels))
        lif = neuron.LIFNode(tau=2.0, surrogate_function=surrogate.Sigmoid(), detach_reset=True, step_mode="m")
        return nn.Sequential(norm, lif)


def unit_step(pair: nn.Module, unit: Unit, *, channels_last: bool = False) -> Callable[[], None]:
    """Forward and backward of the pair alone; our networks keep channels last in memory, others tokens."""
    generator = torch.Generator("cpu").manual_seed(0)
    shape = (unit.time_steps, unit.batch, unit.channels, unit.tokens)
    drawn = (torch.randn(shape, generator=generator, device="cpu") for _ in range(2))
    x, grad = (values.to(torch.get_default_device()) for values in drawn)
    if channels_last:
        x, grad = (t.movedim(2, -1).contiguous().movedim(-1, 2) for t in (x, grad))
    x.requires_grad_()
    wanted = [x, *pair.parameters()]

    def step() -> None:
        torch.autograd.grad(pair(x), wanted, grad)
        functional.reset_net(pair)

    return step
