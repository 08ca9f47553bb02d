"""How kernels are launched: on the device of their tensors, and rounding every operation."""

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, **constants: Any) -> None:
    """Run as many programs as the grid has, where the first argument lies; Triton itself would take the current device.

    No product is fused with a sum: the twins round both.
    """
    first = arguments[0]
    assert isinstance(first, Tensor)
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **constants, num_warps=num_warps, enable_fp_fusion=False)
