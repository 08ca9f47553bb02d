# pyright: reportUnknownVariableType=false
"""Batch normalisation without a neuron on a device: the operators of `kernels/norm.py` in Triton."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..norm import ready, step_sizes, values_of
from .channel_sums import room_for_channel_sums, settled
from .forms import forms_of
from .launch import launch
from .moments import measured
from .norm_kernels import add_kernel, finish_kernel, normalise_kernel
from .tiles import Tiles
from .variants import Variant

PRECISIONS = torch.float32, torch.float16, torch.bfloat16


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised values, mean and variance of each channel."""
    if mean is None or var is None:
        return norm_kept(x, weight, bias, None, None, None, momentum=0.0, eps=eps)
    # New tensors: backward needs them as they are now.
    mean, var = (t.to(torch.float32, copy=True).contiguous() for t in (mean, var))
    return _normalised(x, weight, bias, mean, var, eps), mean, var


def norm_kept(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    share: Tensor | None,
    *,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of a batch in training; running statistics are moved."""
    _, *sizes, last = step_sizes(x, 1)
    tiles = Tiles.of(*sizes, last=last)
    mean, var = measured(values_of(x, x.dtype, last), tiles, 1, running_mean, running_var, share, momentum)
    return _normalised(x, weight, bias, mean, var, eps), mean, var


def _normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    _, *sizes, last = step_sizes(x, 1)
    values, tiles = values_of(x, x.dtype, last), Tiles.of(*sizes, last=last)
    normal = torch.empty_like(values)
    gain, offset = (None if t is None else ready(t, t.dtype) for t in (weight, bias))
    grid = tiles.count, tiles.blocks
    launch(normalise_kernel, grid, values, normal, mean, var, gain, offset, eps=eps, **tiles.arguments)
    return normal


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, *, eps: float, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    _, *sizes, last = step_sizes(x, 1)
    values, grads, tiles = values_of(x, x.dtype, last), values_of(grad, grad.dtype, last), Tiles.of(*sizes, last=last)
    grad_x, sums = torch.empty_like(values), room_for_channel_sums(x, tiles)
    grid = tiles.splits, tiles.blocks
    launch(add_kernel, grid, values, grads, mean, sums, each=tiles.each, **tiles.arguments)
    grad_weight, grad_bias, correction = settled(sums, var, tiles, 1, eps)
    launch(
        *(finish_kernel, (tiles.count, tiles.blocks), values, grads, grad_x, mean, var),
        *(None if weight is None else ready(weight, weight.dtype),),
        **(correction if training else dict.fromkeys(correction)),
        eps=eps,
        **tiles.arguments,
    )
    return grad_x, grad_weight, grad_bias


def variants() -> Iterator[Variant]:
    """The forms of the kernels."""
    for dtype in PRECISIONS:
        x = torch.empty(64, 64, 32, 32, dtype=dtype, device="meta")
        weight, bias, mean, var = (torch.empty(64, device="meta") for _ in range(4))
        for last in (False, True):
            values = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
            name = f"{str(dtype).removeprefix('torch.')}, {'channels last' if last else 'planes'}"
            forward = partial(norm, values, weight, bias, None, None, eps=1e-5)
            yield from forms_of(name, forward, forward=True)
            keeping = partial(norm_kept, values, weight, bias, mean, var, None, momentum=0.1, eps=1e-5)
            yield from forms_of(f"{name}, kept", keeping, forward=True)
            backward = partial(norm_backward, values, values, weight, mean, var, eps=1e-5, training=True)
            yield from forms_of(name, backward, forward=False)
