"""Batch normalisation and leaky integrate-and-fire in plain torch, one after the other: the twin of `norm_lif`."""

import torch
from torch import Tensor

from .kept import Momentum
from .lif import lif_twin
from .membrane import UNWATCHED, Membrane, Watch
from .norm import plain_norm


def norm_lif_twin(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    slope: Tensor,
    membrane: Membrane,
    times: int,
    training: bool,
    momentum: Momentum,
    eps: float,
    shape: str,
    residual: Tensor | None = None,
    watch: Watch = UNWATCHED,
) -> Tensor:
    """Spikes (T*B, C, ...) of x (T*B, C, ...); arguments as in `norm_lif`."""
    normal = plain_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    normal = normal if residual is None else normal + residual
    currents = normal.reshape(times, x.shape[0] // times, *x.shape[1:])
    precision = torch.promote_types(x.dtype, torch.float32)
    v = currents.new_full(currents.shape[1:], membrane.rest, dtype=precision)
    return lif_twin(currents, v, slope, membrane, shape, watch)[0].flatten(0, 1)
