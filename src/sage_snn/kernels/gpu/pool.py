# pyright: basic, reportGeneralTypeIssues=false
"""Largest of 3 x 3 values, two apart, one beyond the border, in Triton: x (N, C, H, W) with channels last in memory.

Of equal values the first counts, and a NaN always, as in torch. Between forward and backward a byte per value is kept.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch
from .variants import Variant

TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
BYTES = 4096  # that a program makes: 16 for each of 256 threads, as many as AMD's have, twice that for NVIDIA's
CHANNELS = 64  # of them side by side, at most


@triton.jit
def pool_kernel(x, largest, winners, places, channels, height, width, PLACES: tl.constexpr, CHANNELS: tl.constexpr):
    """Largest values and their place 3 * row + column in the window."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    lanes = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    rows, columns = (height + 1) // 2, (width + 1) // 2
    j, i, image = place % columns, place // columns % rows, place // columns // rows
    there = (place < places)[:, None] & (lanes < channels)[None, :]
    best = tl.full((PLACES, CHANNELS), float("-inf"), tl.float32)
    first = tl.where(i == 0, 3, 0) + tl.where(j == 0, 1, 0)  # beyond the border is nothing, not even a place
    winner = tl.broadcast_to(first[:, None], (PLACES, CHANNELS))
    for r in tl.static_range(3):
        for c in tl.static_range(3):
            h, w = 2 * i + r - 1, 2 * j + c - 1
            inside = ((h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None] & there
            at = ((image.to(tl.int64) * height + h) * width + w) * channels
            value = tl.load(x + at[:, None] + lanes[None, :], mask=inside, other=float("-inf")).to(tl.float32)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            winner = tl.where(better, 3 * r + c, winner)
    at = place.to(tl.int64)[:, None] * channels + lanes[None, :]
    tl.store(largest + at, best.to(largest.dtype.element_ty), mask=there)
    tl.store(winners + at, winner.to(tl.uint8), mask=there)


@triton.jit
def pool_backward_kernel(
    grad, winners, grad_x, places, channels, height, width, PLACES: tl.constexpr, CHANNELS: tl.constexpr
):
    """Every value adds the gradients of the windows, four at most, that it won."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    lanes = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    rows, columns = (height + 1) // 2, (width + 1) // 2
    w, h, image = place % width, place // width % height, place // width // height
    there = (place < places)[:, None] & (lanes < channels)[None, :]
    total = tl.zeros((PLACES, CHANNELS), tl.float32)
    for a in tl.static_range(2):
        for b in tl.static_range(2):
            # An even row is the middle one of its window; an odd one the last of its window and the first of the next.
            i, r = h // 2 + a, tl.where(h % 2 == 0, 1, 2 - 2 * a)
            j, c = w // 2 + b, tl.where(w % 2 == 0, 1, 2 - 2 * b)
            inside = (i < rows) & (j < columns) & (h % 2 >= a) & (w % 2 >= b)
            at = (((image.to(tl.int64) * rows + i) * columns + j) * channels)[:, None] + lanes[None, :]
            won = tl.load(winners + at, mask=inside[:, None] & there, other=255) == (3 * r + c)[:, None]
            total += tl.where(won, tl.load(grad + at, mask=inside[:, None] & there, other=0.0).to(tl.float32), 0.0)
    at = place.to(tl.int64)[:, None] * channels + lanes[None, :]
    tl.store(grad_x + at, total.to(grad_x.dtype.element_ty), mask=there)


def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """Largest values (N, C, H', W') and their places, bytes, both with channels last."""
    values = _last(x)
    size = (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2
    largest, winners = _empty(values, size, x.dtype), _empty(values, size, torch.uint8)
    _launch(pool_kernel, largest, values, largest, winners, size=x.shape[2:])
    return largest, winners


def pool_backward(grad: Tensor, winners: Tensor, height: int, width: int) -> Tensor:
    """Gradient (N, C, height, width) of what was pooled, with channels last."""
    grad_x = _empty(grad, (height, width), grad.dtype)
    _launch(pool_backward_kernel, grad_x, _last(grad), _last(winners), grad_x, size=(height, width))
    return grad_x


def _last(x: Tensor) -> Tensor:
    return x.detach().contiguous(memory_format=torch.channels_last)


def _empty(like: Tensor, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    shape = *like.shape[:2], *size
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _launch(kernel: triton.JITFunction, made: Tensor, *tensors: Tensor, size: tuple[int, ...]) -> None:
    places, channels = made.numel() // made.shape[1], made.shape[1]
    tile = _tile(channels, made.dtype)
    grid = -(-places // tile["PLACES"]), -(-channels // tile["CHANNELS"])
    launch(kernel, grid, *tensors, places, channels, *size, **tile)


def _tile(channels: int, dtype: torch.dtype) -> dict[str, int]:
    lanes = min(CHANNELS, triton.next_power_of_2(channels))
    return {"PLACES": BYTES // dtype.itemsize // lanes, "CHANNELS": lanes}


def variants() -> Iterator[Variant]:
    """Both kernels for every dtype, with more channels than a program takes."""
    sizes = {"places": "i32", "channels": "i32", "height": "i32:1", "width": "i32:1"}
    for dtype, name in TYPES.items():
        forward = {"x": f"*{name}", "largest": f"*{name}", "winners": "*u8", **sizes}
        backward = {"grad": f"*{name}", "winners": "*u8", "grad_x": f"*{name}", **sizes}
        yield Variant(f"pool, {str(dtype)[6:]}", pool_kernel, forward, _tile(CHANNELS, dtype))
        yield Variant(f"pool backward, {str(dtype)[6:]}", pool_backward_kernel, backward, _tile(CHANNELS, dtype))
