"""The deployment form of a network: batch normalisation folded into the weights, nothing left that training needs."""

from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..compat import entries
from ..control import copied, unwrapped


class FoldedLIF(nn.Module):
    """Synapse with the normalisation folded in, and LIF: (T, B, C, ...) -> spikes (T, B, C', ...)."""

    def __init__(self, synapse: nn.Module, lif: nn.Module) -> None:
        super().__init__()
        self.synapse, self.lif = synapse, lif

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Spikes of all time steps; the residual (T, B, C', ...) is added to the currents."""
        currents = self.synapse(x.flatten(0, 1)).unflatten(0, (len(x), -1))
        return self.lif(currents if residual is None else currents + residual)

    def forward_static(self, x: Tensor, times: int) -> Tensor:
        """The same for an input (B, C, ...) that does not change over time: its synapses work once."""
        currents = self.synapse(x)
        return self.lif(currents.expand(times, *currents.shape))


def fuse(model: nn.Module) -> nn.Module:
    """A copy for inference that gives the same spikes up to rounding; the model itself is not touched.

    Folds every synapse-norm-LIF unit of our networks, and every convolution or linear layer that a BatchNorm follows in
    a sequential container, such as SpikingJelly's.

    Args:
        model: the trained network.
    """
    (fused,) = copied(unwrapped(model))
    fused.eval()
    for parent in list(fused.modules()):
        for name, child in list(parent.named_children()):
            if all(hasattr(child, part) for part in ("synapse", "norm", "lif")):
                unit: Any = child
                setattr(parent, name, FoldedLIF(_folded(unit.synapse, unit.norm), unit.lif))
        if isinstance(parent, nn.Sequential):
            _fold_sequence(parent)
    return fused.requires_grad_(False)


def _fold_sequence(container: nn.Sequential) -> None:
    for first, second in pairwise(list(entries(container))):
        layer, norm = entries(container)[first], entries(container)[second]
        foldable = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)
        if foldable and isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(container, first, _folded(layer, norm))
            setattr(container, second, nn.Identity())


def _folded(layer: nn.Module, norm: Any) -> nn.Module:
    fold: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
    return fold(layer.eval(), norm.eval())
