"""What kernels of inference make of weights once, and keep for the calls that follow."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..compat import version_of


class Packed:
    """One tensor made of another, and made anew when that one was written to or another took its place.

    A change that torch's own count of versions does not see (`weight.data += noise`) is not seen here either. Copies
    and pickles start empty.
    """

    def __init__(self) -> None:
        self._source: Tensor | None = None  # held, so that nothing else can come to lie at its address
        self._version = -1
        self._made: Tensor | None = None

    def of(self, source: Tensor, make: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """`make(source)`, from before if nothing has changed."""
        if source.is_inference():  # torch does not count its versions
            return make(source)
        held, version = self._source, version_of(source)
        is_same = held is not None and _place(held) == _place(source) and self._version == version
        if not is_same:
            self._source, self._version, self._made = source.detach(), version, make(source)
        return self._made

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Packed, ()


def _place(tensor: Tensor) -> tuple[int, torch.dtype, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
