"""Dense token-wise maps on CPUs: torch's own product (MKL), or oneDNN's where MKL leaves half of the processor idle.

MKL uses vectors of 256 bits on processors that are not Intel's. Where AMD's have two units of 512 (Zen 5), oneDNN takes
half the time for the same product, written as a convolution of width 1. x: (..., C) contiguous, W: (C', C).
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from ..machine import halves_wide_vectors, is_amds
from .path import path

IMAGES = 16  # that rows are divided into: with fewer, torch may take a convolution of its own
# Below so many rows or multiplications, handing a product over costs more than it saves.
ROWS, PRODUCTS = 256, 2**24


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear(x, weight, bias)`, with gradients."""
    if not is_by_onednn(x, weight):
        return F.linear(x, weight, bias)
    product = F.conv2d(_image(x), _kernel(weight), bias)
    return product.permute(0, 2, 3, 1).reshape(*x.shape[:-1], len(weight))


def of_input(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x, of which only the size is read."""
    if not is_by_onednn(x, weight):
        return (grad.reshape(-1, grad.shape[-1]) @ weight).view(x.shape)
    of_x, _ = _backward(grad, x, weight, [True, False, False])
    return of_x.permute(0, 2, 3, 1).reshape(x.shape)


def of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weight."""
    weight = x.new_empty(grad.shape[-1], x.shape[-1])  # nothing of it is read
    if not is_by_onednn(x, weight):
        return grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1])
    _, of_kernel = _backward(grad, x, weight, [False, True, False])
    return of_kernel.reshape(weight.shape)


def is_by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Does oneDNN compute this product?"""
    return (
        path(x) == "C++"  # first: an exported graph is to know nothing of how large its batch must be
        and _has_narrow_mkl()
        and x.dtype == weight.dtype == torch.float32
        and x.is_contiguous()
        and x.shape[-1] == weight.shape[1]
        and x.numel() * len(weight) >= PRODUCTS
        and (rows := x.numel() // x.shape[-1]) >= ROWS
        and rows % IMAGES == 0
    )


@torch.compiler.assume_constant_result  # pyright: ignore[reportUnknownMemberType]
def _has_narrow_mkl() -> bool:
    """A constant of a compiled graph."""
    return _narrow()


@cache
def _narrow() -> bool:
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and not halves_wide_vectors()
    return is_wide and is_amds() and torch.backends.mkldnn.is_available()


def _image(x: Tensor) -> Tensor:
    """Rows as pixels with channels last in memory."""
    return x.reshape(IMAGES, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)


def _kernel(weight: Tensor) -> Tensor:
    return weight[..., None, None]


def _backward(grad: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> tuple[Tensor, Tensor]:
    pixels = _image(grad.contiguous())
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        pixels, _image(x), _kernel(weight), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted
    )
    return of_x, of_weight
