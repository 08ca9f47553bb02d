"""Max pooling as spiking stems have it, 3 x 3 every two pixels: kernels in C++ and Triton; their twin is torch's own.

x: (N, C, H, W) with channels last in memory. Backward needs one byte per output.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .bits import are_marked, mark_spikes
from .calls import SUFFIX, function, register
from .counts import pool_counts
from .path import path
from .room import room

_DTYPES = {"C++": tuple(SUFFIX), "Triton": (torch.float32, torch.float16, torch.bfloat16), "twin": ()}


def spike_pool(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, C, (H + 1) // 2, (W + 1) // 2), in the memory order of x."""
    if x.dtype == torch.uint8:
        return pool_counts(x)
    if not x.numel() or not _runs_natively(x):
        return F.max_pool2d(x, 3, stride=2, padding=1)
    wants_gradient = torch.is_grad_enabled() and x.requires_grad
    largest: Any = NativePool.apply(x) if wants_gradient else torch.ops.sage_snn.pool(x)[0]
    if are_marked(x):
        mark_spikes(largest)
    return largest


class NativePool(torch.autograd.Function):
    """The kernel and its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Largest values."""
        largest, winners = torch.ops.sage_snn.pool(x)
        ctx.save_for_backward(winners)
        ctx.size = x.shape[2:]
        return largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Every gradient goes to where its value came from."""
        (winners,) = ctx.saved_tensors
        return torch.ops.sage_snn.pool_backward(grad, winners, *ctx.size)


def _runs_natively(x: Tensor) -> bool:
    return (
        x.dtype in _DTYPES[path(x)]
        and x.ndim == 4
        and not x.is_contiguous()
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def _last(x: Tensor) -> Tensor:
    return x.detach().contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    size = (*like.shape[:2], height, width)
    return torch.empty(size, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    height, width = _size(x)[2:]
    return _empty(x, height, width, x.dtype), _empty(x, height, width, torch.uint8)


def _size(x: Tensor) -> tuple[int, ...]:
    return *x.shape[:2], (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2


def _grad_x(grad: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
    return _empty(grad, height, width, grad.dtype)


def _pool(x: Tensor) -> tuple[Tensor, Tensor]:
    values, size = _last(x), _size(x)
    largest, winners = (room(size, dtype, last=True) for dtype in (x.dtype, torch.uint8))
    images, channels, height, width = x.shape
    pointers = largest.data_ptr(), winners.data_ptr()
    function("sage_pool", x.dtype)(
        values.data_ptr(), images, height, width, channels, *pointers, torch.get_num_threads()
    )
    return largest, winners


def _pool_backward(grad: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
    grads, kept = _last(grad), _last(winners)
    grad_x = room((*grad.shape[:2], height, width), grad.dtype, last=True)
    sizes = grad.shape[0], height, width, grad.shape[1]
    function("sage_pool_backward", grad.dtype)(
        grads.data_ptr(), kept.data_ptr(), *sizes, grad_x.data_ptr(), torch.get_num_threads()
    )
    return grad_x


register("pool(Tensor x) -> (Tensor, Tensor)", _pool, _outputs, "pool")
register("pool_backward(Tensor grad, Tensor winners, int height, int width) -> Tensor", _pool_backward, _grad_x, "pool")
