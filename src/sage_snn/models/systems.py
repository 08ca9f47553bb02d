"""What each compared system fires with: an activation for the convolutional networks, by name."""

from dataclasses import dataclass
from functools import partial

from spikingjelly.activation_based import surrogate
from torch import nn

from ..layers import StatelessLIF, ThresholdNorm
from ..neurons import DietLIF, RateIF, STDBNode
from .convolution import LIF, Activation, Norm, batch_norm, no_norm


@dataclass(frozen=True)
class Neuron:
    """How a network's activation is made; an ANN's is not spiking, and sees an image once."""

    make: Activation
    threshold: float = 1.0
    is_spiking: bool = True


def _tdbn() -> nn.Module:
    """u <- u / 4 * (1 - o) + x, threshold 1/2, a rectangle of width 1 (STBP-tdBN; Zheng et al., AAAI 2021)."""
    return _lif(4 / 3, 0.5, surrogate.Rect(1.0))


def _tet() -> nn.Module:
    """u <- u / 2 * (1 - o) + x, threshold 1, a triangle of width 2 (TET; Deng et al., ICLR 2022)."""
    return _lif(2.0, 1.0, surrogate.PiecewiseQuadratic(1.0))


def _lif(tau: float, threshold: float, function: nn.Module) -> nn.Module:
    return StatelessLIF(tau, decay_input=False, v_threshold=threshold, surrogate_function=function, step_mode="m")


NEURONS = {
    "lif": Neuron(LIF),
    "tdbn": Neuron(_tdbn, threshold=0.5),
    "tet": Neuron(_tet),
    "diet": Neuron(DietLIF),
    "stdb": Neuron(STDBNode),
    "rate": Neuron(RateIF),
    "half_rate": Neuron(partial(RateIF, start=0.5)),
    "relu": Neuron(nn.ReLU, is_spiking=False),
}


def norm_of(name: str, neuron: Neuron) -> Norm:
    """The normalisation before such a neuron: "batch", "threshold" (tdBN) or "none"."""
    threshold = partial(ThresholdNorm, threshold=neuron.threshold)
    return {"batch": batch_norm, "threshold": threshold, "none": no_norm}[name]
