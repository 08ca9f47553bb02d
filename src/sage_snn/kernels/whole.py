"""Synapses with whole weights over events, for inference, in C++: counts in bytes -> currents in float32.

counts: uint8 (N, C, H, W) with channels last in memory, or (..., C) contiguous; weights int8 (C', C, 3, 3) or (C', C),
packed once. The sums are whole and exact, so the dense product is the twin, to the bit but for how `sum * scale + bias`
is rounded.
"""

import torch
from torch import Tensor

from .additions import tell_additions
from .calls import function
from .events import are_off
from .limits import INPUTS, OUTPUTS, ROWS
from .path import path

# Events to a thousand values, a count of three being three: oneDNN's dense products are as fast near 190 with VNNI, and
# near 320 with AVX2. Of short sums they are faster at any rate.
MOST_EVENTS = 150
_TERMS = 256


def may_pay(counts: Tensor, weight: Tensor, left_out: int = 1) -> bool:
    """Is the product large enough for lists? Of so many positions one is computed."""
    outputs, inputs = weight.shape[:2]
    return (
        path(counts) == "C++"
        and not torch.compiler.is_compiling()
        and inputs >= INPUTS
        and outputs >= OUTPUTS
        and weight.numel() >= _TERMS * outputs
        and counts.numel() >= ROWS * inputs * left_out
        and not are_off()
    )


def pack_whole(weight: Tensor) -> Tensor:
    """Weights int8 as the kernel wants them: in blocks of outputs that fit into registers, 16 bits each."""
    outputs, inputs, taps = len(weight), weight.shape[1], weight[0, 0].numel()
    values = weight.to(torch.int16).contiguous()
    packed = torch.empty(function("sage_whole_size")(outputs, inputs, taps), dtype=torch.int16)
    function("sage_whole_pack")(values.data_ptr(), outputs, inputs, taps, packed.data_ptr())
    return packed


def whole_conv(counts: Tensor, packed: Tensor, scale: Tensor, bias: Tensor, stride: int) -> Tensor | None:
    """Currents (N, C', H', W') of a kernel of 3 x 3, channels last; None if there are too many events."""
    images, inputs, height, width = counts.shape
    size = images, len(scale), (height - 1) // stride + 1, (width - 1) // stride + 1
    out = torch.empty(size, memory_format=torch.channels_last)
    sizes = images, height, width, inputs, len(scale), stride
    is_done = function("sage_whole_conv")(
        *(counts.data_ptr(), packed.data_ptr(), scale.data_ptr(), bias.data_ptr(), *sizes),
        *(MOST_EVENTS, out.data_ptr(), torch.get_num_threads()),
    )
    if not is_done:
        return None
    tell_additions(counts, len(scale), stride)
    return out


def whole_map(counts: Tensor, packed: Tensor, scale: Tensor, bias: Tensor) -> Tensor | None:
    """Currents (..., C'); None if there are too many events."""
    inputs, outputs = counts.shape[-1], len(scale)
    out = torch.empty(*counts.shape[:-1], outputs)
    is_done = function("sage_whole_map")(
        *(counts.data_ptr(), packed.data_ptr(), scale.data_ptr(), bias.data_ptr(), counts.numel() // inputs),
        *(inputs, outputs, MOST_EVENTS, out.data_ptr(), torch.get_num_threads()),
    )
    if not is_done:
        return None
    tell_additions(counts, outputs)
    return out
