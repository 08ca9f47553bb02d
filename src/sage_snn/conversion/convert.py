"""The swap of activations for neurons, and the loop over time around networks that know nothing of it."""

import torch
from spikingjelly.activation_based import functional
from torch import Tensor, nn

from ..control import copied, unwrapped
from ..models.network import SpikingNetwork
from ..neurons import RateIF
from .qcfs import QCFS


class Repeated(nn.Module):
    """A network of single-step neurons that sees the same input at every time step: (B, ...) -> mean over time."""

    def __init__(self, network: nn.Module, time_steps: int) -> None:
        super().__init__()
        self.network, self.time_steps = network, time_steps

    def forward(self, x: Tensor, *, steps: bool = False) -> Tensor:
        """The mean over time; with `steps` every answer, (T, B, ...)."""
        answers = self.forward_steps(x)
        return answers if steps else answers.mean(0)

    def forward_steps(self, x: Tensor) -> Tensor:
        """The answer of every time step, from rest, (T, B, ...)."""
        functional.reset_net(self)
        answers = torch.stack([self.network(x) for _ in range(self.time_steps)])
        functional.reset_net(self)
        return answers


def to_snn(ann: nn.Module, time_steps: int) -> nn.Module:
    """A spiking copy, in eval mode, of an ANN trained with `QCFS` activations; gives the mean over `time_steps`.

    Our networks (built with `activation=QCFS` and `time_steps=1`) stay what they are, with other neurons; any other
    module is run step by step.

    Args:
        ann: the trained network.
        time_steps: T of the spiking one.
    """
    if time_steps < 1:
        raise ValueError(f"time_steps must be at least 1, not {time_steps}")
    (network,) = copied(unwrapped(ann))
    is_ours = isinstance(network, SpikingNetwork)
    swapped = _swap(network, "m" if is_ours else "s")
    if not swapped:
        raise ValueError(
            f"{type(network).__name__} has no QCFS activation to convert; train it with "
            "activation=sage_snn.conversion.QCFS (or in the place of its ReLUs) first"
        )
    if unknown := sorted({type(part).__name__ for part in network.modules() if _is_activation(part)}):
        raise ValueError(
            f"{type(network).__name__} has activations that become no neuron: {', '.join(unknown)}; "
            "train it with QCFS in their place first"
        )
    if not is_ours:
        return Repeated(network, time_steps).eval()
    network.time_steps = time_steps
    return network.eval()


def _is_activation(module: nn.Module) -> bool:
    """One of torch's own, such as ReLU or GELU."""
    return type(module).__module__ == nn.ReLU.__module__


def _swap(network: nn.Module, step_mode: str) -> int:
    """Put a neuron in the place of every activation; how many there were."""
    swapped = 0
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, QCFS):
                node = RateIF(start=0.5, step_mode=step_mode).to(child.threshold)
                node.load_state_dict(child.state_dict())
                setattr(parent, name, node)
                swapped += 1
    return swapped
