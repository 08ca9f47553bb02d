"""Large tensors in memory that a tensor of the same size can have again.

torch asks the C library for aligned memory. With glibc (seen with 2.36) that costs a little on either side, which
small objects then take, so that what a tensor leaves is too small for the next of its size: a training step of ours
held twice the memory of its tensors. numpy asks for memory as it comes, and we align within.
"""

from math import prod

import numpy as np
import torch
from torch import Tensor

_LINE = 64  # bytes of a line of the cache, where torch's own tensors begin too
_LARGE = 2**16  # bytes; below, little is lost and the way through numpy is felt
_NAMES = {torch.float32: np.float32, torch.float64: np.float64, torch.uint8: np.uint8}


def room(size: tuple[int, ...], dtype: torch.dtype, last: bool = False) -> Tensor:
    """An empty tensor on the CPU; axis 1 may lie last in memory."""
    if not last:
        return _room(prod(size), dtype).view(size)
    return _room(prod(size), dtype).view(size[0], *size[2:], size[1]).movedim(-1, 1)


def room_like(like: Tensor) -> Tensor:
    """An empty tensor on the CPU that lies as this one, which has no gaps and is of float32 or float64."""
    if like.numel() * like.dtype.itemsize < _LARGE:
        return torch.empty_like(like)
    values, first = _values(like.numel(), like.dtype)
    return values.as_strided(like.shape, like.stride(), first)


def _room(count: int, dtype: torch.dtype) -> Tensor:
    if count * dtype.itemsize < _LARGE:
        return torch.empty(count, dtype=dtype)
    values, first = _values(count, dtype)
    return values[first : first + count]


def _values(count: int, dtype: torch.dtype) -> tuple[Tensor, int]:
    """More than so many values, and which of them begins a line."""
    spare = _LINE // dtype.itemsize
    values: Tensor = torch.from_numpy(np.empty(count + spare, dtype=_NAMES[dtype]))  # pyright: ignore[reportUnknownMemberType]
    return values, -values.data_ptr() % _LINE // dtype.itemsize
