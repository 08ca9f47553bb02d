"""Spikes as bits, 64 to a word: a thirty-second of float32, for what has to be kept between forward and backward.

On a CPU every value is looked at. On a GPU that would wait for the device, so there only what a firing kernel wrote,
and nobody changed since, is taken for spikes: `mark_spikes` remembers it by the memory in which it lies.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..compat import has_saved_tensor_hooks, packing_hook, version_of
from .calls import ONES, SUFFIX, function, inverse, memory_order
from .path import path
from .room import room

WORD = 64
_WORTH_PACKING = 4096  # values; below, the call costs more than the memory is worth


@dataclass(frozen=True)
class _Mark:
    """What was marked, and its bits if the kernel wrote them too."""

    dtype: torch.dtype
    version: int
    words: Tensor | None


_marked: WeakKeyDictionary[torch.UntypedStorage, _Mark] = WeakKeyDictionary()


def mark_spikes(spikes: Tensor, words: Tensor | None = None) -> None:
    """Say that a kernel has just filled this tensor with zeros and ones; heard on GPUs only.

    `words` are its bits, in the order in which it lies in memory.
    """
    if torch.compiler.is_compiling() or path(spikes) != "Triton" or spikes.is_inference():
        return
    memory = spikes.untyped_storage()
    if spikes.numel() * spikes.element_size() == memory.nbytes():  # nothing else is in it
        _marked[memory] = _Mark(spikes.dtype, version_of(spikes), words)


def are_marked(tensor: Tensor) -> bool:
    """Is it, or is it a view of, what was marked, and not changed since?"""
    return _mark_of(tensor) is not None


def _mark_of(tensor: Tensor) -> _Mark | None:
    if torch.compiler.is_compiling() or path(tensor) != "Triton" or tensor.is_inference():
        return None
    mark = _marked.get(tensor.untyped_storage())
    return mark if mark and (mark.dtype, mark.version) == (tensor.dtype, version_of(tensor)) else None


def pack_bits(spikes: Tensor) -> Tensor | None:
    """Bits (words,) int64 of spikes of any shape, in contiguous order; None if a value is neither 0 nor 1.

    On a GPU without a look at the values: None if the tensor is not known to be spikes.
    """
    words = -(-spikes.numel() // WORD)
    if path(spikes) == "Triton":
        return _pack_marked(spikes)
    if path(spikes) == "twin" or spikes.dtype not in ONES:
        return _pack_twin(spikes.detach(), words)
    values = spikes.detach().contiguous()
    packed = torch.empty(words, dtype=torch.int64)
    arguments = values.data_ptr(), values.element_size(), ONES[values.dtype], values.numel(), packed.data_ptr()
    return None if function("sage_pack_bits")(*arguments, torch.get_num_threads()) else packed


def unpack_bits(packed: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Spikes of the given shape and dtype, contiguous."""
    if path(packed) == "Triton":
        return _triton().unpack(packed, shape, dtype)
    if path(packed) == "twin" or dtype not in SUFFIX:
        bits = torch.arange(WORD, device=packed.device)
        return (packed.unsqueeze(-1) >> bits & 1).flatten()[: math.prod(shape)].to(dtype).view(shape)
    spikes = room(shape, dtype)
    function("sage_unpack_bits", dtype)(packed.data_ptr(), spikes.numel(), spikes.data_ptr(), torch.get_num_threads())
    return spikes


def _pack_marked(spikes: Tensor) -> Tensor | None:
    """Bits as the firing kernel wrote them, where the tensor is all that it fired and lies as it did."""
    if (mark := _mark_of(spikes)) is None:
        return None
    is_whole = spikes.is_contiguous() and spikes.numel() * spikes.element_size() == spikes.untyped_storage().nbytes()
    return _triton().pack(spikes) if mark.words is None or not is_whole else mark.words


def _triton() -> ModuleType:
    from .gpu import bits  # not before a device asks for it: Triton need not be there

    return bits


def _pack_twin(spikes: Tensor, words: int) -> Tensor | None:
    if not ((spikes == 0) | (spikes == 1)).all():
        return None
    bits = torch.zeros(words * WORD, dtype=torch.int64, device=spikes.device)
    bits[: spikes.numel()] = spikes.reshape(-1).to(torch.int64)
    return (bits.view(words, WORD) << torch.arange(WORD, device=spikes.device)).sum(-1)


def spikes_as_bits(x: Tensor) -> AbstractContextManager[object]:
    """Inside, whatever autograd keeps for backward and consists of zeros and ones is kept as bits.

    With kernels only, where packing costs less than the memory it saves; x tells the device.
    Not inside activation checkpointing or other hooks on what is kept, which would then see nothing to keep.
    """
    if path(x) == "twin" or torch.compiler.is_compiling() or has_saved_tensor_hooks():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_packed, _unpacked)


def are_kept_as_bits(spikes: Tensor) -> bool:
    """Would autograd keep spikes like these as bits, if anything needs them for backward?"""
    return torch.is_grad_enabled() and spikes.numel() >= _WORTH_PACKING and packing_hook() is _packed


def bits_to_keep(x: Tensor) -> Tensor | None:
    """Bits of x as it lies in memory, for an operator that reads them; None where autograd would keep x as it is."""
    if torch.compiler.is_compiling() or not are_kept_as_bits(x):
        return None
    return pack_bits(x.permute(memory_order(x)))


_Packed = tuple[Tensor, tuple[int, ...], torch.dtype, list[int]]
_Kept = tuple[Tensor, int]  # detached, or an output would keep its own graph alive; and its version then


def _packed(tensor: Tensor) -> _Kept | _Packed:
    is_parameter = tensor.is_leaf and tensor.requires_grad
    has_kernel = tensor.dtype in SUFFIX or path(tensor) == "Triton"
    if is_parameter or not has_kernel or tensor.numel() < _WORTH_PACKING:
        return tensor.detach(), version_of(tensor)
    order = memory_order(tensor)  # nothing has to be copied to be packed, and what comes back lies as it did
    as_it_lies = tensor.permute(order)
    bits = pack_bits(as_it_lies)
    return (
        (tensor.detach(), version_of(tensor))
        if bits is None
        else (bits, tuple(as_it_lies.shape), tensor.dtype, inverse(order))
    )


def _unpacked(kept: _Kept | _Packed) -> Tensor:
    if len(kept) == 2:
        tensor, version = kept
        if version_of(tensor) != version:  # with hooks torch leaves this to them
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation "
                f"(shape {tuple(tensor.shape)}): call backward() before the optimizer steps"
            )
        return tensor
    bits, shape, dtype, order = kept
    return unpack_bits(bits, shape, dtype).permute(order)
