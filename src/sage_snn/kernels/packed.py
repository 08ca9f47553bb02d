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
        # The source, held so that nothing else can come to lie at its address, its version, what was made of it: one
        # value, so that threads which share a network never see parts of two.
        self._kept: tuple[Tensor, int, Tensor | None] | None = None

    def of(self, source: Tensor, make: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """`make(source)`, from before if nothing has changed."""
        if source.is_inference():  # torch does not count its versions
            return make(source)
        kept, version = self._kept, version_of(source)
        if kept is None or kept[1] != version or _place(kept[0]) != _place(source):
            kept = self._kept = source.detach(), version, make(source)
        return kept[2]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Packed, ()


def _place(tensor: Tensor) -> tuple[int, torch.dtype, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
